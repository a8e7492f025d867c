// The table of all runs, and the comparison of two runs and of two attempts by step. The cluster is that of `lockstep demo`.

import assert from "node:assert/strict";
import test from "node:test";

import { SHOWN_MS, accessibilityFaults, logIn, openAt, openPage, picture, pressUntilAt, startBrowser, startDemo, waitFor } from "./harness.mjs";

/** The demo submits four runs, and this test one more. */
const RUNS = 5;
/** From the submission to the first steps, or from a stop to the end of the ranks, on two busy cores. */
const TRAINING_MS = 240_000;
/** An open comparison is requested again every ten seconds. */
const COMPARED_MS = 90_000;
const CHARTS = ["Loss", "Gradient norm", "Throughput", "Step time"];
/** A run of the demo without faults that end it. */
const OTHER = "vit-l-ddp";
const OWNER = "vision team";

test("the table of runs and the comparison", async (t) => {
  const lockstep = await startDemo(t);
  const runs = () => lockstep.call("GET", "/api/runs");
  await waitFor("the demo has submitted its runs", TRAINING_MS, async () => (await runs()).length === RUNS - 1);
  const own = await submitAs(lockstep, OWNER, {
    name: "second",
    recipe: "resume",
    nodes: 1,
    nproc_per_node: 8,
    backend: "nccl",
    stall_timeout_s: 0,
    set: { lr: "0.5" },
    labels: { team: "vision", stage: "pretrain" },
  });
  const other = (await runs()).find(({ name }) => name === OTHER).id;
  for (const run of [own, other]) await waitFor(`${run} makes steps`, TRAINING_MS, () => reached(lockstep, run, 1, 5));
  const browser = await startBrowser(t);

  await t.test("j and k go from row to row; t and the brackets choose the period of a run", async (t) => {
    const page = await openPage(t, browser);
    await openAt(page, lockstep, "/runs");
    const rows = page.getByTestId("run-row");
    await rows.nth(RUNS - 1).waitFor();
    const [first, second] = await rows.evaluateAll((all) => all.map(({ dataset }) => dataset.run));
    for (const [key, run] of [["j", first], ["j", second], ["k", first], ["k", first]]) {
      await page.keyboard.press(key);
      assert.equal(await page.evaluate(() => document.activeElement.closest("tr")?.dataset.run), run, `after ${key}`);
    }
    await page.keyboard.press("Enter");
    await page.waitForURL((url) => url.pathname === `/runs/${first}`);

    const { started_ms } = (await runs()).find(({ id }) => id === own);
    const period = (begin) => `?from=${begin}&to=${begin + 2}`;
    const begin = Math.ceil(started_ms / 1_000) + 4;
    await waitFor("the run is old enough", SHOWN_MS, () => Date.now() / 1_000 > begin + 6);
    await openAt(page, lockstep, `/runs/${own}${period(begin)}`);
    await page.getByTestId("unzoom").waitFor();
    for (const [key, search] of [["[", period(begin - 2)], ["]", period(begin)], ["]", period(begin + 2)]]) {
      await page.keyboard.press(key);
      await page.waitForURL((url) => url.search === search);
    }
    await page.keyboard.press("t");
    await page.locator("#run-span:focus").waitFor();
    assert.equal(await page.getByTestId("span").inputValue(), "10m", "the letter chooses no option");
    await page.keyboard.press("Control+k");
    await page.keyboard.type("zoom out");
    await page.getByTestId("palette").getByRole("option", { name: "Zoom out" }).waitFor();
    await page.keyboard.press("Enter");
    await page.waitForURL((url) => url.search === "");
  });

  await t.test("all runs are in one table; the address holds filter, order and groups", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.getByRole("navigation").getByRole("link", { name: "Runs", exact: true }).click();
    const rows = page.getByTestId("run-row");
    await rows.nth(RUNS - 1).waitFor();
    const counted = (text) => page.getByTestId("runs-count").filter({ hasText: text }).waitFor();
    await counted("5 of 5 runs");
    assert.match(await row(page, own).innerText(), /vision team\s+resume\s+stage=pretrain\s*team=vision/);
    assert.match(await row(page, other).innerText(), /admin/);
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "runs");

    await page.getByTestId("runs-owner").selectOption(OWNER);
    await counted("1 of 5 runs");
    assert.equal(param(page, "owner"), OWNER);
    await page.getByTestId("runs-owner").selectOption("");
    await page.getByTestId("runs-filter").fill("admin fsdp");
    await counted("1 of 5 runs");
    await page.getByTestId("runs-filter").fill("");
    await counted("5 of 5 runs");
    await row(page, own).getByRole("button", { name: "team=vision" }).click();
    await counted("1 of 5 runs");
    assert.equal(await page.getByTestId("runs-label").inputValue(), "team=vision");
    await page.getByTestId("runs-label").selectOption("");
    await page.getByTestId("runs-state").selectOption("succeeded");
    await counted("0 of 5 runs");
    await page.getByTestId("runs-state").selectOption("");
    await counted("5 of 5 runs");

    const ids = () => rows.evaluateAll((all) => all.map(({ dataset }) => dataset.run));
    const before = await ids();
    await page.getByTestId("all-runs").getByRole("button", { name: "Run", exact: true }).click();
    const sorted = [...before].sort();
    assert.notDeepEqual(before, sorted);
    await waitFor("the rows are in the order of their ids", SHOWN_MS, async () => (await ids()).join() === sorted.join());
    await page.getByTestId("runs-group").selectOption("label:team");
    const groups = page.getByTestId("run-group");
    await groups.nth(1).waitFor();
    await page.reload();
    await groups.nth(1).waitFor();
    assert.match(await groups.nth(0).innerText(), /^vision · runs: 1,/);
    assert.match(await groups.nth(1).innerText(), /^None · runs: 4,/);
    assert.deepEqual((await ids()).slice(1), sorted.filter((id) => id !== own), "the order is in the address too");
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("two chosen runs are compared: differences first, then figures, then curves of both by step", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await pressUntilAt(page, ["g", "r"], "/runs");
    await row(page, own).waitFor();
    assert.equal(await page.getByRole("button", { name: "Compare", exact: true }).isDisabled(), true);
    for (const run of [own, other]) await page.getByLabel(`Compare ${run}`).check();
    const third = (await runs()).find(({ id }) => id !== own && id !== other).id;
    assert.equal(await page.getByLabel(`Compare ${third}`).isDisabled(), true, "no more than two");
    await page.getByTestId("compare").click();
    const team = page.locator("[data-testid=difference][data-what='labels.team']");
    await team.getByText("vision").waitFor();
    await page.locator("[data-testid=difference][data-what='spec.recipe']").waitFor();
    const parts = page.locator("[data-testid=differences], [data-testid=figures], [data-testid=curves]");
    assert.deepEqual(await parts.evaluateAll((all) => all.map(({ dataset }) => dataset.testid)), ["differences", "figures", "curves"]);
    assert.match(await page.getByTestId("figures").innerText(), /Step time/);
    for (const title of CHARTS) await hasLines(page, title, [`${own} attempt 1`, `${other} attempt 1`]);
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "compare");

    const address = page.url();
    await page.getByTestId("swap").click();
    await page.getByTestId("side").first().getByRole("link", { name: other }).waitFor();
    assert.equal(param(page, "a"), other);
    await page.goto(address);
    await hasLines(page, "Loss", [`${own} attempt 1`, `${other} attempt 1`]);
    await page.getByTestId("rank").fill("100");
    await page.getByTestId("rank").press("Tab");
    await chart(page, "Loss").getByText("Rank 100 has no values on either side.").waitFor();
    assert.equal(param(page, "rank"), "100");
  });

  await t.test("two attempts of one run are compared", async (t) => {
    await lockstep.call("POST", `/api/runs/${own}/stop`, { grace_ms: 1_000 });
    await waitFor("the run has stopped", TRAINING_MS, async () => (await lockstep.call("GET", `/api/runs/${own}`)).state === "stopped");
    await lockstep.call("POST", `/api/runs/${own}/resume`, { from_start: true });
    await waitFor("the second attempt makes steps", TRAINING_MS, () => reached(lockstep, own, 2, 5));
    const page = await openPage(t, browser);
    await openAt(page, lockstep, `/runs?q=${own}`);
    await page.getByLabel(`Compare ${own}`).check();
    await page.getByRole("link", { name: "Compare attempts" }).click();
    await hasLines(page, "Loss", [`${own} attempt 1`, `${own} attempt 2`]);
    const attempt = page.getByTestId("side-attempt").first();
    assert.equal(await attempt.inputValue(), "1");
    await attempt.selectOption("2");
    await page.getByText("Both sides are the same attempt.").waitFor();
    assert.equal(param(page, "a"), `${own}@2`);
    assert.equal(await page.getByTestId("curves").count(), 0);
  });

  await t.test("a run that does not exist is named", async (t) => {
    const page = await openPage(t, browser, { expected: /status of 404/ });
    await openAt(page, lockstep, "/runs/compare");
    await page.getByText("Choose two runs in the list of runs").waitFor();
    await page.goto(`${lockstep.url}/runs/compare?a=${own}&b=no-such-run`);
    await page.getByRole("alert").filter({ hasText: "no-such-run" }).waitFor();
  });

  await t.test("on a phone and in dark mode both pages are readable", async (t) => {
    const page = await openPage(t, browser, { width: 390, height: 844, dark: true });
    for (const [path, shown] of [
      ["/runs", page.getByTestId("run-row").first()],
      [`/runs/compare?a=${own}&b=${other}`, chart(page, "Loss")],
    ]) {
      await openAt(page, lockstep, path);
      await shown.scrollIntoViewIfNeeded();
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, path);
      assert.deepEqual(await accessibilityFaults(page), [], path);
    }
  });
});

const row = (page, run) => page.locator(`[data-testid=run-row][data-run="${run}"]`);

const chart = (page, title) => page.getByTestId("curves").getByRole("region", { name: title, exact: true });

const param = (page, name) => new URL(page.url()).searchParams.get(name);

/** Waits until a chart has a line with these names, each with a value. */
async function hasLines(page, title, names) {
  const rows = chart(page, title).getByTestId("chart-legend").locator("tbody tr");
  await waitFor(`${title} has a line of each side`, COMPARED_MS, async () => {
    // Again each time: a chart far outside of the window is not drawn, and what appears above it moves it.
    await chart(page, title).scrollIntoViewIfNeeded();
    const shown = await rows.evaluateAll((all) => all.map(({ cells }) => [...cells].map(({ textContent }) => textContent)));
    return shown.map(([name]) => name).join() === names.join() && shown.every(([, , min]) => /\d/.test(min));
  });
  assert.ok(Number(await chart(page, title).getAttribute("data-points")) > 1);
}

/** Submits a run in the name of the user of a new token. Returns the run's id. */
async function submitAs(lockstep, note, spec) {
  const { token } = await lockstep.call("POST", "/api/tokens", { role: "operator", note });
  const response = await fetch(`${lockstep.url}/api/runs`, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: JSON.stringify(spec),
    signal: AbortSignal.timeout(SHOWN_MS),
  });
  assert.equal(response.status, 201, await response.clone().text());
  return (await response.json()).id;
}

/** Returns true once this attempt of the run has made so many steps. */
async function reached(lockstep, run, number, steps) {
  const { attempts } = await lockstep.call("GET", `/api/runs/${run}`);
  return attempts.some(({ attempt, last_step }) => attempt === number && last_step >= steps);
}
