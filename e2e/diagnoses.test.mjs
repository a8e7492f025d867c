// A GPU of the simulated node falls off the bus: the list of diagnoses, and the page of that diagnosis, on a desktop and on a phone.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import { accessibilityFaults, logIn, openAt, openPage, picture, readPush, scrollToDrawn, startBrowser, startLockstep, waitFor } from "./harness.mjs";

const GPU = 3;
/** The rule waits three seconds; a collector on busy cores needs a few more. */
const FIRED_MS = 90_000;
/** Minimum size for fingers, in pixels. */
const FINGER_PX = 48;

test("diagnoses", async (t) => {
  const lockstep = await startLockstep(t, { simulate: `h100x8:lost,gpu=${GPU}` });
  const browser = await startBrowser(t);
  const page = await openPage(t, browser);
  await logIn(page, lockstep);
  let id;

  await t.test("the list shows the problem with a link, and the filter stays in the address", async () => {
    await page.getByRole("navigation").getByRole("link", { name: "Diagnoses" }).click();
    const row = page.locator("[data-testid=diagnosis-row][data-rule=GpuLost]");
    await row.waitFor({ timeout: FIRED_MS });
    assert.match(await row.innerText(), /critical[\s\S]*GPU 3 of .* does not answer[\s\S]*since/);
    await page.getByLabel("Filter").fill("gpulost 3");
    await page.waitForURL((url) => url.searchParams.get("q") === "gpulost 3");
    await page.getByLabel("Filter").fill("no such words");
    await row.waitFor({ state: "detached" });
    await page.getByText("No diagnosis matches.").first().waitFor();
    await page.getByLabel("Filter").fill("");
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "diagnoses");
    await row.getByRole("link").first().click();
    await page.waitForURL(/\/diagnoses\/[^/]+$/);
    id = new URL(page.url()).pathname.split("/").at(-1);
  });

  await t.test("its page shows summary, culprit, start, confidence, reasons and advice, in that order", async () => {
    await page.getByTestId("what").getByText(/GPU 3 of .* does not answer/).waitFor();
    assert.match(await page.getByTestId("who").innerText(), /^node .*, GPU 3/);
    assert.match(await page.getByTestId("since").innerText(), /^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d, (just now|.* ago)$/);
    assert.match(await page.getByTestId("how-sure").innerText(), /^(High|Medium): /);
    assert.match(await page.getByTestId("what-to-do").innerText(), /kernel log/);
    const tops = await page.getByTestId("incident").locator("h1, dd").evaluateAll((all) => all.map((element) => element.dataset.testid));
    assert.deepEqual(tops, ["what", "who", "since", "how-sure", "why", "what-to-do"]);
  });

  await t.test("the tab shows that there are diagnoses, for people who look at another tab", async () => {
    assert.match(await page.title(), /^● [1-9]\d* · Diagnosis · Lockstep$/);
    const icon = await page.locator("link[rel=icon]").getAttribute("href");
    assert.equal(icon, "/favicon-marked.svg");
    assert.equal(await page.evaluate(async (path) => (await fetch(path)).headers.get("content-type"), icon), "image/svg+xml");
  });

  await t.test("a row keeps the focus when two other problems arrive above it", async (t) => {
    // The overview asks for the action of the first one, which the collector does not have.
    const other = await openPage(t, browser, { expected: /status of 404/ });
    let listed;
    let stream;
    let pushed = false;
    await other.routeWebSocket("**/api/stream*", (socket) => {
      stream = socket;
      socket.connectToServer().onMessage((message) => {
        const push = readPush(message);
        if (push.type === "diagnoses") listed = push;
        // Changes of the collector's list do not fit the list below.
        if (!pushed || !push.type.startsWith("diagnoses")) socket.send(message);
      });
    });
    await logIn(other, lockstep);
    const summary = other.locator("[data-testid=needs-you][data-rule=GpuLost] summary");
    await summary.focus();
    const isReal = ({ rule }) => rule === "GpuLost";
    const real = listed.diagnoses.find(isReal);
    const rest = listed.diagnoses.filter((one) => !isReal(one));
    const [first, second] = ["first", "second"].map((id) => ({ ...real, id, fingerprint: id, rule: "OtherProblem" }));
    pushed = true;
    stream.send(JSON.stringify({ ...listed, diagnoses: [first, second, real, ...rest] }));
    await other.locator("[data-testid=needs-you][data-rule=OtherProblem]").nth(1).waitFor();
    assert.ok(await summary.evaluate((element) => element === document.activeElement), "it has the focus");
  });

  await t.test("the sentence of the overview leads to the first action, and carries nothing out", async (t) => {
    for (const look of [{ width: 390, height: 844, touch: true, dark: true }, { width: 1440, height: 900 }, { width: 2560, height: 1440 }]) {
      const other = await openPage(t, browser, look);
      const sent = await offerActions(other);
      await logIn(other, lockstep);
      const sentence = other.getByTestId("sentence");
      const next = sentence.getByRole("link", { name: /^Exclude node n3 ?…$/ });
      await next.waitFor();
      assert.equal(await next.getAttribute("href"), await sentence.getByRole("link", { name: "Open" }).getAttribute("href"));
      if (look.touch) assert.ok((await next.boundingBox()).height >= 44, "it fits a finger");
      assert.ok((await other.evaluate(() => document.documentElement.scrollWidth)) <= look.width, "nothing is cut off");
      assert.deepEqual(await accessibilityFaults(other), []);
      await picture(other, `overview-action-${look.width}`);
      await next.press("Enter");
      await other.waitForURL(/\/diagnoses\/[^/]+$/);
      const action = other.getByTestId("action").first();
      await waitFor("the action has the focus", FIRED_MS, () => action.evaluate((element) => element === document.activeElement));
      assert.equal(await other.getByRole("dialog").count(), 0, "nothing is confirmed yet");
      await other.keyboard.press("Enter");
      await other.getByRole("dialog", { name: "Run action?" }).waitFor();
      assert.deepEqual(sent, [], "nothing was carried out");
      await other.unrouteAll({ behavior: "wait" });
    }
  });

  await t.test("a viewer is offered no action on the overview", async (t) => {
    const { token } = await lockstep.call("POST", "/api/tokens", { role: "viewer" });
    const viewer = await openPage(t, browser);
    let asked = 0;
    await viewer.route("**/api/diagnoses/*", (route) => {
      asked += 1;
      return route.fallback();
    });
    await logIn(viewer, { ...lockstep, token });
    await viewer.getByTestId("sentence").getByRole("link", { name: "Open" }).waitFor();
    assert.equal(await viewer.getByTestId("next-action").count(), 0);
    assert.equal(asked, 0);
  });

  await t.test("its evidence is a chart in which the culprit stands out from its peers", async () => {
    const chart = page.locator('[data-testid=chart][data-title="GPUs answering"]');
    await waitFor("the chart has points", FIRED_MS, async () => Number(await chart.getAttribute("data-points")) > 0);
    await scrollToDrawn(chart);
    const legend = chart.getByTestId("chart-legend");
    await legend.locator("tr.is-bold").getByText("gpu 3").waitFor();
    await legend.getByText("median of the others").waitFor();
    await chart.getByRole("button", { name: "Show all 8 lines" }).click();
    await legend.getByText("gpu 7").waitFor();
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "incident");
  });

  await t.test("it is acknowledged, commented and silenced, and the page shows this", async () => {
    await page.getByTestId("acknowledge").click();
    await page.getByTestId("handling-words").getByText(/Acknowledged by/).waitFor();
    await page.getByTestId("note").click();
    await page.locator("[name=note]").fill("reseated the riser");
    await page.getByTestId("confirm-note").click();
    await page.getByTestId("timeline").getByText(/commented: reseated the riser/).waitFor();
    await page.getByTestId("silence").click();
    assert.equal(await page.getByTestId("confirm-silence").isDisabled(), true, "a silence needs a reason");
    await page.locator("[name=comment]").fill("the vendor comes at noon");
    await page.getByTestId("silence-reach").getByText(/^Would hide 1 of \d+ alerts/).waitFor();
    const labels = page.getByRole("group", { name: "Labels that must match" }).getByRole("checkbox");
    await labels.first().waitFor();
    for (const label of await labels.all()) await label.uncheck();
    await page.getByTestId("silence-reach").getByText(/^Would hide 0 of/).waitFor();
    assert.equal(await page.getByTestId("confirm-silence").isDisabled(), true, "a silence needs a label");
    for (const label of await labels.all()) await label.check();
    await page.getByTestId("silence-reach").getByText(/^Would hide 1 of/).waitFor();
    await page.getByTestId("confirm-silence").click();
    await page.getByTestId("handling-words").getByText(/Silenced until/).waitFor();
    await page.getByTestId("acknowledge").getByText("Unacknowledge").waitFor();
    const { diagnosis } = await lockstep.call("GET", `/api/diagnoses/${id}`);
    assert.ok(diagnosis.handling.acknowledged && diagnosis.handling.notes === 1);
  });

  await t.test("the list of silences shows what each one hides, and a silence ends early after a confirmation", async (t) => {
    const other = await openPage(t, browser);
    await openAt(other, lockstep, "/diagnoses");
    const row = other.getByTestId("silence-row").filter({ hasText: "the vendor comes at noon" });
    await row.getByText("Hides 1 alert now.").waitFor();
    assert.match(await row.innerText(), /silenced[\s\S]*alertname="GpuLost"[\s\S]*By .+, until /);
    await other.setViewportSize({ width: 390, height: 844 });
    assert.equal(await other.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
    assert.ok((await row.getByTestId("end-silence").boundingBox()).height >= FINGER_PX);
    assert.deepEqual(await accessibilityFaults(other), []);
    await picture(other, "silences-phone");
    await row.getByTestId("end-silence").press("Enter");
    const dialog = other.getByRole("dialog", { name: "End this silence now?" });
    await dialog.getByText("Hides 1 alert now.").waitFor();
    const state = async () => (await lockstep.call("GET", "/api/silences"))[0].state;
    assert.equal(await state(), "active", "nothing has ended before the confirmation");
    await dialog.getByTestId("confirm-end-silence").click();
    await other.getByText("No active silences.").waitFor();
    assert.equal(await state(), "expired");
    await other.getByTestId("ended-silences").locator("summary").click();
    await row.getByText(/By .+, ended /).waitFor();
    assert.equal(await other.getByTestId("end-silence").count(), 0);
  });

  await t.test("the bundle is a file with the diagnosis and its measurements", async () => {
    const waiting = page.waitForEvent("download");
    await page.getByTestId("bundle").click();
    const download = await waiting;
    assert.equal(download.suggestedFilename(), `lockstep-diagnosis-${id}.json`);
    assert.equal(new URL(download.url()).search, "", "no token in the address");
    const bundle = JSON.parse(await readFile(await download.path(), "utf8"));
    assert.equal(bundle.diagnosis.diagnosis.id, id);
    assert.ok(bundle.chart_values.some(({ series }) => series.length > 0), "a chart has values");
    assert.ok(bundle.events.length > 0, "the node has events");
    assert.ok(!JSON.stringify(bundle).includes(lockstep.token));
  });

  await t.test("for a hang, the stacks of the ranks are grouped, the culprit first", async (t) => {
    const other = await openPage(t, browser, { width: 390, height: 844 });
    const [run, at_ms] = ["llama-1", Date.now()];
    await logIn(other, lockstep);
    await other.route(({ pathname }) => pathname === `/api/diagnoses/${id}`, async (route) => {
      const response = await route.fetch();
      const { diagnosis, ...answer } = await response.json();
      const annotations = { ...diagnosis.annotations, rank_state: "stuck" };
      await route.fulfill({ response, json: { ...answer, diagnosis: { ...diagnosis, run, annotations, who: { kind: "rank", rank: 2, node: "n1" } } } });
    });
    const message = `run ${run} is stalled; ranks 0-1, 3: all_reduce at train.py:57; rank 2: data loading at data.py:12`;
    await other.route("**/api/events?*", (route) => route.fulfill({ json: [{ at_ms, severity: "warning", kind: "rank_stacks", run, message }] }));
    const frame = (file, line, name) => ({ file: `/home/ann/${"x".repeat(80)}/${file}`, line, function: name });
    const groups = [
      { ranks: [0, 1, 3], doing: "all_reduce at train.py:57", frames: [frame("train.py", 57, "average")] },
      { ranks: [2], doing: "data loading at data.py:12", frames: [frame("data.py", 12, "__getitem__")] },
    ];
    let asked = 0;
    await other.route(`**/api/runs/${run}/stacks`, (route) => {
      asked += 1;
      return route.fulfill({ json: { attempt: 1, at_ms, groups, ranks: [] } });
    });
    await other.goto(`${lockstep.url}/diagnoses/${id}`);
    const part = other.getByTestId("rank-stacks");
    await part.getByTestId("stored-stacks").getByText("rank 2: data loading at data.py:12").waitFor();
    assert.equal(asked, 0, "the ranks are asked only on request");
    await part.getByTestId("read-stacks").press("Enter");
    const shown = part.getByTestId("stack-group");
    await shown.first().getByRole("region", { name: "rank 2" }).getByText(/__getitem__ \(.*data\.py:12\)/).waitFor();
    assert.match(await shown.first().innerText(), /culprit[\s\S]*rank 2: data loading at data\.py:12/);
    const waiting = shown.nth(1);
    assert.equal(await waiting.locator("pre").isVisible(), false, "the others are folded");
    await waiting.locator("summary").press("Enter");
    await waiting.locator("pre").getByText(/average/).waitFor();
    assert.equal(await other.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
    assert.deepEqual(await accessibilityFaults(other), []);
    await picture(other, "stacks-phone");
    await other.unrouteAll({ behavior: "wait" });
  });

  await t.test("an open dialog outlives new responses, and says when its action is no longer possible", async (t) => {
    const other = await openPage(t, browser);
    await other.clock.install();
    const requestsAgain = () => other.clock.fastForward("00:10");
    const restart = { id: "restart", title: "Restart the run", cost: "Loses 10 steps.", undo: "Stop the run." };
    let now = { actions: [restart] };
    await other.route(({ pathname }) => pathname === `/api/diagnoses/${id}`, async (route) => {
      const response = await route.fetch();
      const { diagnosis, ...answer } = await response.json();
      await route.fulfill({ response, json: { ...answer, ...now, diagnosis: { ...diagnosis, ...now.diagnosis } } });
    });
    await openAt(other, lockstep, `/diagnoses/${id}`);
    const button = other.getByTestId("action");
    await button.click();
    const dialog = other.getByRole("dialog");
    const confirm = dialog.getByTestId("confirm-action");
    await dialog.getByText("Loses 10 steps.").waitFor();
    await button.evaluate((element) => void (globalThis.firstButton = element));

    now = { actions: [{ id: "trace", title: "Record a trace", cost: "Costs nothing.", undo: "Nothing to undo." }, { ...restart, cost: "Loses 20 steps." }], why: ["another witness"] };
    await requestsAgain();
    await dialog.getByText("Loses 20 steps.").waitFor({ timeout: FIRED_MS });
    await other.getByTestId("why").getByText("another witness").waitFor();
    assert.ok(await other.evaluate(() => globalThis.firstButton.isConnected && globalThis.firstButton.dataset.action === "restart"), "the button stays");
    assert.equal(await confirm.isDisabled(), false);

    now = { actions: [], diagnosis: { state: "resolved", resolved_ms: Date.now() } };
    await requestsAgain();
    await dialog.getByTestId("action-gone").waitFor({ timeout: FIRED_MS });
    await dialog.getByText("Loses 20 steps.").waitFor();
    assert.equal(await confirm.isDisabled(), true);
    await other.getByTestId("incident-state").getByText("resolved").waitFor();
    await other.keyboard.press("Escape");
    await dialog.waitFor({ state: "hidden" });
    assert.equal(await button.count(), 0);
    await other.unrouteAll({ behavior: "wait" });
  });

  await t.test("on a phone the first screen has the facts, nothing is cut off, and buttons fit fingers", async (t) => {
    const phone = await openPage(t, browser, { dark: true, width: 390, height: 844 });
    await openAt(phone, lockstep, `/diagnoses/${id}`);
    await phone.getByTestId("acknowledge").waitFor();
    const bottom = await phone.getByTestId("what-to-do").evaluate((element) => element.getBoundingClientRect().top);
    assert.ok(bottom < 844, `what to do begins at ${bottom} pixels`);
    for (const button of ["acknowledge", "silence", "note", "copy-link"]) {
      const { height } = await phone.getByTestId(button).boundingBox();
      assert.ok(height >= FINGER_PX, `${button} is ${height} pixels high`);
    }
    assert.equal(await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
    assert.deepEqual(await accessibilityFaults(phone), []);
    await picture(phone, "incident-phone");
  });

  await t.test("on a phone, long names and paths do not widen the page", async (t) => {
    const phone = await openPage(t, browser, { width: 390, height: 844 });
    const long = `/${"x".repeat(120)}`;
    const at_ms = Date.now();
    await phone.route(({ pathname }) => pathname === `/api/diagnoses/${id}`, async (route) => {
      const response = await route.fetch();
      const { diagnosis, ...answer } = await response.json();
      const changed = { ...diagnosis, summary: long, advice: `\`${long}\``, who: { ...diagnosis.who, node: long } };
      const context = { why: [long], changed_before: [{ at_ms, kind: "event", text: long }], timeline: [{ at_ms, who: "me", kind: "note", note: long }] };
      await route.fulfill({ response, json: { ...answer, ...context, similar: [{ id: "other", summary: long, fired_ms: at_ms }], diagnosis: changed } });
    });
    await openAt(phone, lockstep, `/diagnoses/${id}`);
    for (const part of ["what", "changed-before", "similar", "timeline"]) await phone.getByTestId(part).filter({ hasText: long }).waitFor();
    assert.equal(await phone.getByTestId("what-to-do").innerText(), long, "a command is shown without backticks");
    assert.equal(await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
    await phone.unrouteAll({ behavior: "wait" });
  });

  await t.test("a viewer sees everything and cannot change anything", async (t) => {
    const { token } = await lockstep.call("POST", "/api/tokens", { role: "viewer" });
    const viewer = await openPage(t, browser);
    await openAt(viewer, { ...lockstep, token }, `/diagnoses/${id}`);
    await viewer.getByTestId("copy-link").waitFor();
    for (const control of ["acknowledge", "silence", "note"]) assert.equal(await viewer.getByTestId(control).count(), 0, control);
    await viewer.getByTestId("bundle").waitFor();
    const planned = { matchers: [{ name: "node", value: "elsewhere" }], for_s: 600, comment: "planned work" };
    await lockstep.call("POST", "/api/silences", planned);
    await viewer.goto(`${lockstep.url}/diagnoses`);
    await viewer.getByTestId("silence-row").filter({ hasText: "planned work" }).getByText("Hides no alert now.").waitFor();
    assert.equal(await viewer.getByTestId("end-silence").count(), 0);
  });

  await t.test("an unknown id is an error message", async (t) => {
    const other = await openPage(t, browser, { expected: /status of 40[04]/ });
    await openAt(other, lockstep, "/diagnoses/no-such-id");
    await other.getByRole("alert").waitFor();
    await other.getByRole("link", { name: "All diagnoses" }).waitFor();
  });

  // The page sends a request every few seconds, and the collector ends before the browser.
  await page.close();
});

/** Adds an action to each diagnosis that the page requests. Returns the list of the page's requests that would change something. */
async function offerActions(page) {
  const sent = [];
  const action = { id: "exclude_node:n3", kind: "exclude_node", title: "Exclude node n3", cost: "Loses 12 steps.", undo: "Return the node." };
  await page.route("**/api/diagnoses/*", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), actions: [action] } });
  });
  page.on("request", (request) => request.method() !== "GET" && !request.url().endsWith("/api/session") && sent.push(request.url()));
  return sent;
}
