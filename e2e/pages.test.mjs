// The pages without a run: log-in, overview, form, rules; on a desktop, on a phone and in dark mode; and their errors.

import assert from "node:assert/strict";
import test from "node:test";

import { SHOWN_MS, accessibilityFaults, logIn, openAt, openPage, pressUntilAt, readPush, startBrowser, startLockstep, textsAtOnce, waitFor } from "./harness.mjs";

const PHONE = { width: 390, height: 844 };
const GPUS = 8;
const RACK = "R01";

test("pages", async (t) => {
  const lockstep = await startLockstep(t, { rack: RACK });
  const browser = await startBrowser(t);

  await t.test("a wrong token shows an error, the right one opens the overview", async (t) => {
    const page = await openPage(t, browser);
    await page.goto(lockstep.url);
    await page.getByLabel("Token").fill("not-a-token");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("alert").filter({ hasText: "does not open the dashboard" }).waitFor();
    assert.equal(await page.title(), "Log in · Lockstep");
    await logIn(page, lockstep);
    assert.equal(await page.title(), "Overview · Lockstep");
    await page.reload();
    await page.getByTestId("gpu-grid").waitFor();
    assert.deepEqual(await page.context().cookies().then((all) => all.map(({ httpOnly, sameSite }) => [httpOnly, sameSite])), [[true, "Strict"]]);
  });

  await t.test("a request that is not in the OpenAPI document fails the test whose page sends it", async () => {
    const ends = [];
    const page = await openPage({ after: (end) => ends.push(end) }, browser, { expected: /status of 40\d/ });
    await openAt(page, lockstep, "/rules");
    await page.getByTestId("rule").first().waitFor();
    await page.evaluate(() => Promise.all([fetch("/api/nothing"), fetch("/api/runs?limit=1&nothing=1"), fetch("/api/rules", { method: "DELETE" })]));
    const complaint = await Promise.all(ends.map((end) => end())).then(() => "", ({ message }) => message);
    const line = "request that is not in the OpenAPI document:";
    assert.deepEqual(complaint.split("\n").slice(1).sort(), [
      `${line} DELETE /api/rules: no such method`,
      `${line} GET /api/nothing: no such path`,
      `${line} GET /api/runs: no such query parameter: nothing`,
    ]);
  });

  await t.test("the overview shows the state in one sentence, and that the GPUs are simulated", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.getByTestId("sentence").getByText("No problems found. No runs are active.").waitFor();
    await page.getByTestId("simulated").getByText("SIMULATED").waitFor();
    assert.deepEqual(await page.locator("main h2").evaluateAll((all) => all.map(({ firstChild }) => firstChild.textContent.trim())), ["First steps", "Runs", "GPUs", "Indicators"]);
    assert.equal(await page.getByTestId("indicator").count(), 5);
    const memory = page.getByTestId("indicator").first();
    await waitFor("an indicator names the worst", SHOWN_MS, async () => /worst .* GPU \d \d/.test(await memory.innerText()));
    assert.match(await memory.innerText(), /median of 8/);
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("GPUs that are held but idle are listed by run with its owner, and by node without a run", async (t) => {
    const page = await openPage(t, browser);
    let real;
    const counts = [
      { metric: { run: "llama-1" }, value: [0, "3"] },
      { metric: { node: "node-07" }, value: [0, "2"] },
    ];
    await page.route(
      ({ pathname }) => pathname === "/api/v1/query",
      async (route) => {
        real ??= await (await route.fetch()).json();
        await route.fulfill({ json: { status: "success", data: { resultType: "vector", result: counts } } });
      },
    );
    await logIn(page, lockstep);
    const line = page.getByTestId("held-idle");
    await line.getByRole("link", { name: "llama-1: 3" }).waitFor();
    const links = await line.getByRole("link").evaluateAll((all) => all.map((link) => [link.textContent, link.getAttribute("href")]));
    assert.deepEqual(links, [["llama-1: 3", "/runs/llama-1"], ["node-07 (no run): 2", "/?sel=node-07"]]);
    assert.equal(real.status, "success", `the collector can compute it: ${JSON.stringify(real)}`);
    assert.deepEqual(real.data.result, [], "the GPUs have not been measured for ten minutes");
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("the first steps are marked as done automatically", async (t) => {
    const page = await openPage(t, browser);
    let pushed = false;
    let push;
    await page.routeWebSocket("**/api/stream*", (socket) => {
      const server = socket.connectToServer();
      const nodes = { type: "nodes", nodes: [] };
      server.onMessage((text) => {
        const message = readPush(text);
        if (message.type === "nodes") {
          push = () => socket.send(text);
          socket.send(pushed ? text : JSON.stringify(nodes));
        } else if (message.type !== "nodes_changed") {
          // Changes of the list that was held back do not fit the empty one.
          socket.send(text);
        }
      });
    });
    await logIn(page, lockstep);
    const steps = page.getByTestId("first-steps");
    await steps.getByText("Connect a node").waitFor();
    const command = page.getByTestId("join-command");
    assert.equal(await command.innerText(), `LOCKSTEP_JOIN=TOKEN lockstep agent --collector ${lockstep.url}`);
    await steps.getByRole("button", { name: "Create token" }).click();
    await waitFor("the command has a token", SHOWN_MS, async () => /^LOCKSTEP_JOIN=\S{16,} /.test(await command.innerText()));
    assert.deepEqual(await accessibilityFaults(page), []);
    pushed = true;
    push();
    await steps.getByText("1 node is connected").waitFor();
    assert.equal(await page.getByTestId("step-node").getAttribute("class"), "state state-ok");
    assert.equal(await page.getByTestId("step-run").getAttribute("class"), "state state-unknown");
    await steps.getByRole("button", { name: "Hide" }).click();
    await steps.waitFor({ state: "detached" });
  });

  await t.test("the palette opens any page with keys only", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.keyboard.press("Control+k");
    const palette = page.getByTestId("palette");
    await palette.getByRole("combobox").waitFor();
    assert.deepEqual(await accessibilityFaults(page), []);
    await page.keyboard.type("gradexpl");
    await palette.getByRole("option", { name: "GradientExplosion" }).waitFor();
    await page.keyboard.press("Enter");
    await page.waitForURL(/\/rules\?q=GradientExplosion$/);
    await page.locator("[data-testid=rule][data-rule=GradientExplosion]").waitFor();
    assert.equal(await palette.isVisible(), false);
    await page.locator("main").focus();
    await pressUntilAt(page, ["g", "o"], "/");
    await page.getByTestId("gpu-grid").waitFor();
    await page.keyboard.press("p");
    await page.getByTestId("connection").getByText("paused").waitFor();
    await page.keyboard.press("p");
    await page.keyboard.press("?");
    const help = page.getByRole("dialog", { name: "Keys" });
    await help.getByRole("checkbox").uncheck();
    await help.getByRole("button", { name: "Close" }).click();
    await page.keyboard.press("?");
    await page.keyboard.press("Control+k");
    await palette.getByRole("combobox").waitFor();
    assert.equal(await help.isVisible(), false, "single keys are off");
  });

  await t.test("the palette presses buttons of the header and those of the page that ask first", async (t) => {
    const page = await openPage(t, browser);
    await openAt(page, lockstep, "/rules");
    await page.getByTestId("rule").first().waitFor();
    const palette = page.getByTestId("palette");
    const find = async (typed, option) => {
      await page.keyboard.press("Control+k");
      await palette.getByRole("combobox").waitFor();
      await page.keyboard.type(typed);
      await palette.getByRole("option", { name: option }).first().waitFor();
    };
    const pause = await page.getByTestId("pause").innerText();
    await find("action pause", pause);
    await page.keyboard.press("Enter");
    await page.getByTestId("connection").getByText("paused").waitFor();
    // Two buttons with one name, one that asks first, and one that does not.
    await page.evaluate(() => {
      const add = (text) => {
        const button = document.createElement("button");
        button.textContent = text;
        button.onclick = () => (button.dataset.pressed = "yes");
        document.querySelector("main").append(button);
        return button;
      };
      ["Twice…", "Twice…", "At once", "Asks first…"].forEach(add);
      // A part of the page may have a header of its own, whose buttons may do anything.
      const header = document.createElement("header");
      header.append(add("At once too"));
      document.querySelector("main").append(header);
    });
    await find("action", "Asks first…");
    assert.deepEqual(await palette.getByRole("option").allInnerTexts().then((all) => all.filter((text) => /Twice|At once|Log out/.test(text))), []);
    await page.keyboard.type(" asks");
    await palette.getByRole("combobox").evaluate((input) => input.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true })));
    assert.equal(await palette.isVisible(), true, "the Enter of an input method presses nothing");
    await page.keyboard.press("Enter");
    await page.locator("main button[data-pressed]").filter({ hasText: "Asks first…" }).waitFor();
  });

  await t.test("each GPU is a cell, and arrow keys move between cells", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    const words = page.getByTestId("gpu-words");
    const grid = page.getByTestId("gpu-grid");
    await grid.focus();
    await page.keyboard.press("ArrowRight");
    await waitFor("the first GPU is described with its value", SHOWN_MS, async () => / GPU 0 · \d.* %/.test(await words.innerText()));
    for (let gpu = 1; gpu < GPUS; gpu += 1) await page.keyboard.press("ArrowRight");
    await words.getByText(`GPU ${GPUS - 1} · `).waitFor();
    assert.match(await words.innerText(), /points (below|above) the median of GPUs without a run/);
    const [heard, seen] = await textsAtOnce(page, "#gpu-pointed", "[data-testid=gpu-words]");
    assert.equal(heard, seen, "a screen reader hears the same");
    await page.keyboard.press("ArrowRight");
    await words.getByText(`GPU ${GPUS - 1} · `).waitFor();
  });

  await t.test("another measure recolours the cells, and the address contains it", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    const grid = page.getByTestId("gpu-grid");
    // The first cell is below its node's name; its first pixels contain no text.
    const colour = () => grid.locator("canvas").first().evaluate((canvas) => [...canvas.getContext("2d").getImageData(6, 24, 1, 1).data].join());
    await page.getByTestId("gpus-show").selectOption("value");
    const before = await waitFor("the cell has a colour", SHOWN_MS, async () => (await colour()) !== "0,0,0,0" && colour());
    await page.getByTestId("gpus-colour").selectOption("temperature");
    await waitFor("the cell has another colour", SHOWN_MS, async () => (await colour()) !== before);
    assert.match(page.url(), /\?show=value&colour=temperature$/);
    await grid.focus();
    await page.keyboard.press("ArrowRight");
    await waitFor("degrees are told", SHOWN_MS, async () => /°C/.test(await page.getByTestId("gpu-words").innerText()));
    const height = async () => (await grid.boundingBox()).height;
    const ungrouped = await height();
    await page.getByTestId("gpus-group").selectOption("run");
    await waitFor("the group has a heading", SHOWN_MS, async () => (await height()) > ungrouped);
    const version = Number(await grid.getAttribute("data-version"));
    await waitFor("values go on in the new order", SHOWN_MS, async () => Number(await grid.getAttribute("data-version")) > version + 1);
    await page.reload();
    assert.equal(await page.getByTestId("gpus-colour").inputValue(), "temperature");
  });

  await t.test("GPUs are grouped by rack, and each names its rack", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    const grid = page.getByTestId("gpu-grid");
    const height = async () => (await grid.boundingBox())?.height ?? 0;
    const before = await waitFor("the grid is drawn", SHOWN_MS, async () => (await height()) > 20 && height());
    await page.getByTestId("gpus-group").selectOption("rack");
    // The heading of the rack is 24 pixels high.
    await waitFor("the rack has a heading", SHOWN_MS, async () => Math.round((await height()) - before) === 24);
    assert.match(page.url(), /\?group=rack$/);
    await grid.focus();
    await page.keyboard.press("ArrowRight");
    await page.getByTestId("gpu-words").getByText(`rack ${RACK}`).waitFor();
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("the grid is also available as a table", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.getByTestId("gpus-gpus").selectOption("table");
    const rows = page.locator("[data-testid=gpu-table] tbody tr");
    await rows.nth(GPUS - 1).waitFor();
    assert.equal(await rows.count(), GPUS);
    await waitFor("each has a value", SHOWN_MS, async () => (await rows.allInnerTexts()).every((text) => /\d %/.test(text)));
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("ten thousand GPUs fit the screen, and the one that differs is visible", async (t) => {
    const page = await openPage(t, browser, { width: 1440, height: 900 });
    const nodes = Array.from({ length: 1_250 }, (_, n) => `node-${String(n).padStart(4, "0")}`);
    const gpus = Array.from({ length: 8 }, (_, index) => ({ index, uuid: `GPU-${index}`, name: "H100", pci_bus_id: "", memory_total_bytes: 80e9 }));
    const inventory = { hostname: "", os: "", kernel: "", cpu_model: "", cpus: 1, memory_bytes: 1, driver_version: "", cuda_version: "", gpus, accepts_runs: true };
    const views = nodes.map((name) => ({ name, state: "up", seen_ms: Date.now(), agent_version: "1", clock_offset_ms: 0, inventory, runs: [] }));
    const odd = { node: "node-0700", gpu: "3" };
    const value = (node, gpu) => (node === odd.node && gpu === odd.gpu ? 0.2 : 0.9);
    const series = () => nodes.flatMap((node) => gpus.map(({ index }) => ({ labels: { node, gpu: String(index) }, values: [value(node, String(index))] })));
    await page.routeWebSocket("**/api/stream*", (socket) => {
      const server = socket.connectToServer();
      socket.onMessage((text) => {
        const request = JSON.parse(text);
        if (request.op === "watch_instant" && request.query.startsWith("gpu_sm_active_ratio or")) socket.send(JSON.stringify({ type: "frame", id: request.id, reset: true, times_ms: [Date.now()], series: series() }));
        else server.send(text);
      });
      server.onMessage((message) => {
        const { type } = readPush(message);
        // Changes of the collector's list do not fit the list here.
        if (type !== "nodes_changed") socket.send(type === "nodes" ? JSON.stringify({ type, nodes: views }) : message);
      });
    });
    await logIn(page, lockstep);
    const grid = page.getByTestId("gpu-grid");
    await waitFor("the cells are drawn", SHOWN_MS, async () => (await grid.boundingBox())?.height > 400);
    assert.ok((await grid.boundingBox()).height <= 640, "no scrolling on a laptop");
    // Cells are 7 pixels wide with 1 pixel between them, 8 cells per node.
    const colours = () =>
      grid.locator("canvas").first().evaluate((canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const counts = new Map();
        // As whole numbers: a million texts would keep the page busy for seconds. The highest byte is the opacity.
        for (const pixel of new Uint32Array(data.buffer)) if (pixel >>> 24 > 0) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
        return [...counts.values()].sort((a, b) => b - a);
      });
    await waitFor("all but one have one colour", SHOWN_MS, async () => JSON.stringify(await colours()) === JSON.stringify([9_999 * 49, 49]));
    await page.getByTestId("gpus-gpus").selectOption("table");
    await page.locator("[data-testid=gpu-table] tbody tr").first().getByText("node-0700 GPU 3").waitFor();
  });

  await t.test("a chart of whole numbers has no ticks between them", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    const ticks = await page.evaluate(async () => {
      await lockstepLoadCharts();
      const element = document.createElement("div");
      document.querySelector("main").prepend(element);
      const chart = lockstepChart.create(element, "plain", true, "time");
      const drawn = async (values) => {
        const ticks = [];
        chart.format = (tick) => String(ticks.push(tick));
        lockstepChart.set(chart, ["up"], ["line"], Float64Array.of(1, 2, 3), [Float64Array.from(values)], new Float64Array());
        while (ticks.length === 0) await new Promise(requestAnimationFrame);
        return ticks;
      };
      const all = [await drawn([0, 1, NaN]), await drawn([0, 0.5, 1]), await drawn([0, 1, 1])];
      chart.destroy();
      element.remove();
      return all;
    });
    const isWhole = ticks.map((all) => all.every(Number.isInteger));
    assert.deepEqual(isWhole, [true, false, true], JSON.stringify(ticks));
  });

  await t.test("the form shows the errors that the server would, until they are fixed", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.getByRole("navigation").getByRole("link", { name: "New run" }).click();
    const start = page.getByTestId("submit-run");
    const mistakes = page.getByTestId("mistake");
    assert.equal(await start.isEnabled(), true);
    await page.locator("[name=nodes]").fill("0");
    await mistakes.getByText("must be from 1 to 1024").waitFor();
    assert.equal(await start.isEnabled(), false);
    await page.locator("[name=nodes]").fill("1");
    await mistakes.waitFor({ state: "detached" });
    await page.locator("[name=set]").fill("steps");
    await mistakes.getByText("is not NAME=VALUE").waitFor();
    await page.locator("[name=set]").fill("steps=10");
    await mistakes.waitFor({ state: "detached" });
    await page.locator("[name=recipe]").selectOption({ label: "your own script" });
    await mistakes.getByText("enter the path of the script").waitFor();
    await page.locator("[name=script]").fill("train.py");
    await mistakes.getByText("give an absolute path").waitFor();
    await page.locator("[name=script]").fill("/srv/train.py");
    await mistakes.waitFor({ state: "detached" });
    assert.equal(await start.isEnabled(), true);
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("the rules are a table with a filter, and an opened one stays open during updates", async (t) => {
    const page = await openPage(t, browser);
    await openAt(page, lockstep, "/rules");
    const rules = page.getByTestId("rule");
    const rule = page.locator("[data-testid=rule][data-rule=GradientExplosion]");
    await rule.waitFor();
    assert.ok((await rules.count()) >= 10);
    assert.equal(await rule.getAttribute("data-state"), "inactive");
    await rule.getByRole("button", { name: "GradientExplosion" }).click();
    const evaluated = () => rule.getByText("evaluated").locator("time").getAttribute("title");
    const before = await evaluated();
    await waitFor("the rule was evaluated again", SHOWN_MS, async () => (await evaluated()) !== before);
    await rule.getByText("What to do:").waitFor();
    assert.deepEqual(await accessibilityFaults(page), []);
    await page.getByTestId("rules-filter").fill("gradient explosion");
    await waitFor("fewer rules are shown", SHOWN_MS, async () => (await rules.count()) < 10);
    await rule.getByText("What to do:").waitFor();
    assert.match(page.url(), /q=gradient%20explosion$/);
    await page.getByTestId("rules-state").selectOption("firing");
    await waitFor("no rule fires", SHOWN_MS, async () => (await rules.count()) === 0);
  });

  await t.test("an admin finds in the audit log who did what, and others do not see it", async (t) => {
    const { id, token } = await lockstep.call("POST", "/api/tokens", { role: "operator", note: "Ann" });
    const ann = await openPage(t, browser);
    await logIn(ann, { ...lockstep, token });
    await ann.goto(`${lockstep.url}/rules`);
    await ann.getByTestId("rule").first().waitFor();
    assert.equal(await ann.getByTestId("audit").count(), 0);
    const page = await openPage(t, browser);
    await openAt(page, lockstep, "/rules");
    const log = page.getByTestId("audit");
    const lines = log.getByTestId("audit-line");
    await lines.filter({ hasText: `Ann (${id})` }).filter({ hasText: "log in" }).first().waitFor();
    const filter = log.getByLabel("Filter the audit log");
    await filter.fill(`token create ${id}`);
    await waitFor("one line is shown", SHOWN_MS, async () => (await lines.count()) === 1);
    assert.match(await log.getByTestId("audit-count").innerText(), /^1 of \d+$/);
    assert.match(page.url(), /audit=token%20create%20/);
    assert.deepEqual(await accessibilityFaults(page), []);
    await filter.fill("");
    const silence = await lockstep.call("POST", "/api/silences", { matchers: [{ name: "node", value: "elsewhere" }], for_s: 60, comment: "a test" });
    await log.getByRole("button", { name: "Refresh" }).click();
    await log.getByRole("link", { name: silence.id }).waitFor();
    await page.setViewportSize(PHONE);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
  });

  await t.test("older entries of the audit log are added without gaps and duplicates", async (t) => {
    const page = await openPage(t, browser);
    const entry = (at_ms, target) => ({ at_ms, who: "ann", what: "run_stop", target });
    const newest = Array.from({ length: 200 }, (_, at) => entry(10_000 - at, `run-${at}`));
    await page.route("**/api/audit?*", (route) => {
      const before = new URL(route.request().url()).searchParams.get("before_ms");
      return route.fulfill({ json: before ? [newest.at(-1), entry(newest.at(-1).at_ms, "at-once"), entry(1, "first")] : newest });
    });
    await openAt(page, lockstep, "/rules");
    const lines = page.getByTestId("audit-line");
    await page.getByTestId("audit-older").click();
    await lines.filter({ hasText: "first" }).waitFor();
    assert.equal(await lines.count(), 202);
    assert.equal(await page.getByTestId("audit-older").count(), 0);
    assert.equal(await lines.filter({ hasText: "at-once" }).getByRole("link").getAttribute("href"), "/runs/at-once");
    await page.unrouteAll({ behavior: "wait" });
  });

  await t.test("on a phone nothing is cut off", async (t) => {
    const page = await openPage(t, browser, PHONE);
    await logIn(page, lockstep);
    for (const path of ["/", "/runs/new", "/rules"]) {
      await page.goto(lockstep.url + path);
      await page.locator("main h1").waitFor({ state: "attached" });
      await page.getByTestId("simulated").waitFor();
      if (path === "/rules") await page.getByTestId("rule").first().waitFor();
      await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
      if (path === "/rules") await page.getByTestId("rule").first().getByRole("button").click();
      const beyond = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.equal(beyond, 0, `${path} is ${beyond} pixels too wide`);
    }
  });

  await t.test("in dark mode the pages are dark and readable", async (t) => {
    const page = await openPage(t, browser, { dark: true });
    await logIn(page, lockstep);
    await page.getByTestId("gpu-grid").waitFor();
    const light = await page.evaluate(() => {
      const canvas = document.createElement("canvas").getContext("2d");
      canvas.fillStyle = getComputedStyle(document.body).backgroundColor || getComputedStyle(document.documentElement).backgroundColor;
      canvas.fillRect(0, 0, 1, 1);
      return Math.max(...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3));
    });
    assert.ok(light < 80, `the background is ${light} of 255`);
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("values do not change while the page is paused, and continue afterwards", async (t) => {
    const page = await openPage(t, browser);
    const unanswered = new Set();
    page.on("websocket", (socket) => {
      socket.on("framesent", ({ payload }) => {
        const { op, id } = JSON.parse(payload);
        if (op === "unwatch") unanswered.delete(id);
        else unanswered.add(id);
      });
      socket.on("framereceived", ({ payload }) => unanswered.delete(readPush(payload).id));
    });
    await logIn(page, lockstep);
    const state = page.getByTestId("connection");
    const shown = () => page.locator("main").innerText();
    await waitFor("an indicator has a value", SHOWN_MS, async () => /worst/.test(await page.getByTestId("indicator").first().innerText()));
    // The first message of a watch is shown during a pause, too.
    await waitFor("each watch has its first message", SHOWN_MS, () => unanswered.size === 0);
    await page.getByRole("button", { name: "Pause" }).click();
    await state.getByText("paused").waitFor();
    const before = await shown();
    const measured = async () => Number((await lockstep.call("GET", "/api/v1/query?query=max(timestamp(gpu_power_watts))")).data.result[0].value[1]);
    const began = await measured();
    await waitFor("three seconds more were measured", 15_000, async () => (await measured()) >= began + 3);
    assert.equal(await shown(), before);
    await page.getByRole("button", { name: "Continue" }).click();
    await state.getByText("live").waitFor();
    await waitFor("a value has changed", 15_000, async () => (await shown()) !== before);
  });

  await t.test("the zone of times is chosen once, and named in the address", async (t) => {
    const page = await openPage(t, browser, { timezone: "Asia/Shanghai" });
    await openAt(page, lockstep, "/rules");
    const hour = async () => Number(/(\d\d):\d\d:\d\d$/.exec(await page.locator("[data-testid=rule-details] time").first().getAttribute("title"))[1]);
    await page.getByTestId("rule").first().getByRole("button").click();
    const zone = page.getByTestId("zone");
    assert.equal(await zone.locator("option").first().innerText(), "UTC+08:00");
    const local = await hour();
    await zone.selectOption("UTC");
    assert.match(page.url(), /tz=utc/);
    await page.getByTestId("rule").first().getByRole("button").click();
    // Seven if an hour has ended since.
    await waitFor("times are in UTC", 15_000, async () => [7, 8].includes((local - (await hour()) + 24) % 24));
    await page.goto(`${lockstep.url}/rules`);
    await page.getByTestId("rule").first().waitFor();
    assert.equal(await zone.inputValue(), "utc", "this browser remembers it");
  });

  await t.test("rows are compact or comfortable, by choice in the header's menu or the palette, and the browser remembers it", async (t) => {
    const page = await openPage(t, browser, { width: 1440 });
    await openAt(page, lockstep, "/rules");
    const row = page.getByTestId("rule").first().locator("tr").first();
    const height = async () => Math.round((await row.boundingBox()).height);
    const choice = page.getByTestId("density");
    await row.waitFor();
    assert.equal(await choice.inputValue(), "compact");
    const compact = await height();
    assert.ok(compact >= 28 && compact < 36, `a compact row has ${compact} pixels`);
    assert.equal(await choice.isVisible(), false);
    await page.getByTestId("display").focus();
    await page.keyboard.press("Enter");
    await choice.selectOption("comfortable");
    await waitFor("rows are higher", SHOWN_MS, async () => (await height()) === compact + 8);
    assert.deepEqual(await accessibilityFaults(page), []);
    await page.keyboard.press("Escape");
    await choice.waitFor({ state: "hidden" });
    await page.reload();
    await row.waitFor();
    assert.equal(await choice.inputValue(), "comfortable", "this browser remembers it");
    assert.equal(await height(), compact + 8);
    await page.keyboard.press("Control+k");
    await page.getByTestId("palette").getByRole("combobox").waitFor();
    await page.keyboard.type("density");
    await page.getByTestId("palette").getByRole("option", { name: "Compact" }).waitFor();
    await page.keyboard.press("Enter");
    await waitFor("rows are lower again", SHOWN_MS, async () => (await height()) === compact);
    assert.equal(await choice.inputValue(), "compact", "the header follows the palette");
    assert.match(page.url(), /\/rules$/, "the page stays");
    await page.setViewportSize({ width: 700, height: 900 });
    await page.getByTestId("display").click();
    await choice.waitFor();
  });

  await t.test("for fingers rows are 44 pixels high, whatever is chosen", async (t) => {
    const page = await openPage(t, browser, { ...PHONE, touch: true });
    await openAt(page, lockstep, "/rules");
    const row = page.getByTestId("rule").first().locator("tr").first();
    await row.waitFor();
    for (const density of ["compact", "comfortable"]) {
      await page.evaluate((density) => localStorage.setItem("lockstep-density", density), density);
      await page.reload();
      await row.waitFor();
      assert.equal(await page.evaluate(() => document.documentElement.dataset.density), density);
      const { height } = await row.boundingBox();
      assert.ok(Math.round(height) >= 44, `${density}: ${height} pixels`);
    }
  });

  await t.test("the wall display has no controls and large text", async (t) => {
    const page = await openPage(t, browser, { width: 2560, height: 1440 });
    await openAt(page, lockstep, "/?wall=1");
    await page.getByTestId("connection").getByText("live").waitFor();
    assert.equal(await page.getByRole("navigation").isVisible(), false);
    assert.equal(await page.getByRole("button", { name: "Log out" }).isVisible(), false);
    assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).fontSize), "24px");
  });

  await t.test("a session that ended elsewhere returns to the log-in", async (t) => {
    const page = await openPage(t, browser, { expected: /WebSocket connection to/ });
    await logIn(page, lockstep);
    await page.context().clearCookies();
    await page.getByRole("navigation").getByRole("link", { name: "Rules" }).click();
    await page.getByLabel("Token").waitFor();
    assert.equal(await page.title(), "Log in · Lockstep");
  });

  await t.test("logging out ends the session", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("Token").waitFor();
    await page.reload();
    await page.getByLabel("Token").waitFor();
  });

  await t.test("a page of another version reloads itself once", async (t) => {
    const page = await openPage(t, browser);
    let loads = 0;
    let upgraded = false;
    page.on("load", () => (loads += 1));
    await page.routeWebSocket("**/api/stream*", (socket) => {
      const server = socket.connectToServer();
      const first = !upgraded;
      server.onMessage((message) => {
        const push = readPush(message);
        socket.send(first && push.type === "welcome" ? JSON.stringify({ ...push, version: "99.0.0" }) : message);
      });
      upgraded = true;
    });
    await logIn(page, lockstep);
    await waitFor("the page was loaded twice", 15_000, () => loads === 2);
    await page.getByTestId("connection").getByText("live").waitFor();
    assert.equal(loads, 2);
  });

  await t.test("a silent stream is reconnected", async (t) => {
    const page = await openPage(t, browser);
    await page.clock.install();
    let silent = false;
    let streams = 0;
    await page.routeWebSocket("**/api/stream*", (socket) => {
      const mine = (streams += 1);
      const server = socket.connectToServer();
      server.onMessage((message) => (silent && mine === 1 ? undefined : socket.send(message)));
    });
    await logIn(page, lockstep);
    await page.getByTestId("gpu-grid").waitFor();
    silent = true;
    await page.clock.fastForward("00:25");
    await waitFor("a second stream is opened", 15_000, async () => {
      // The pause before it uses the page's own clock.
      await page.clock.fastForward("00:01");
      return streams > 1;
    });
    await page.getByTestId("connection").getByText("live").waitFor();
  });

  await t.test("a program that cannot be loaded offers to try again", async (t) => {
    const page = await openPage(t, browser, { expected: /web_bg\.wasm|ERR_FAILED|Failed to (fetch|load)/ });
    // The page shows the error; the error in the console is expected.
    page.removeAllListeners("pageerror");
    await page.route("**/web_bg.wasm", (route) => route.abort());
    await page.goto(lockstep.url);
    await page.getByRole("alert").getByText("The dashboard has failed").waitFor();
    await page.unroute("**/web_bg.wasm");
    await page.getByRole("link", { name: "Reload" }).click();
    await page.getByLabel("Token").waitFor();
  });

  await t.test("a page whose file cannot be loaded offers to try again", async (t) => {
    const page = await openPage(t, browser, { expected: /split_|chunk_|ERR_FAILED|Failed to (fetch|load)/ });
    await page.route(/\/(split|chunk)_.*\.wasm$/, (route) => route.abort());
    await openAt(page, lockstep, "/rules");
    const alert = page.getByRole("alert").filter({ hasText: "This page could not be loaded" });
    await alert.waitFor();
    await page.unroute(/\/(split|chunk)_.*\.wasm$/);
    await alert.getByRole("button", { name: "Retry" }).click();
    await page.getByRole("heading", { name: /Rules \d+ of/ }).waitFor();
  });

  await t.test("unknown addresses and unknown runs say so", async (t) => {
    const page = await openPage(t, browser);
    await openAt(page, lockstep, "/nowhere");
    await page.getByRole("heading", { name: "Page not found" }).waitFor();
    await page.goto(`${lockstep.url}/runs/no-such-run`);
    await page.getByRole("alert").filter({ hasText: "no-such-run" }).waitFor();
  });
});
