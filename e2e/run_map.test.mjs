// The page of a run over time: the time axis, the map of ranks, and a chart of an hour. And a new run that is copied from another one.

import assert from "node:assert/strict";
import test from "node:test";

import { SHOWN_MS, accessibilityFaults, openAt, openPage, picture, readPush, scrollToDrawn, startBrowser, startDemo, startLockstep, textsAtOnce, waitFor, writeSamples } from "./harness.mjs";

/** A GPU slows down 12 s after the first step, and the diagnosis names the rank some seconds later. */
const DIAGNOSED_MS = 240_000;
const RUN = "llama-8b-fsdp";
const RANKS = 1_024;
/** Columns of ten minutes. */
const COLUMNS = 301;
const STEP_MS = 2_000;
const LATE_RANK = 700;
/** The colour of a rank that is a quarter of a step late: `--above`. */
const LATE_COLOUR = "213,94,0,255";
const SECRET = "hf_not_for_browsers";
const MINUTE_MS = 60_000;
/** A chart of an hour has one point per 6 s. */
const CHART_STEP_MS = 6_000;
const SPIKE_WATTS = 700;
const SPIKE_RANK = 5;
/** Two lines of the grid that cross, a quarter opaque each, are no stronger. */
const GRID_ALPHA = 120;

test("a run over time", async (t) => {
  const lockstep = await startDemo(t);
  const browser = await startBrowser(t);
  const run = await waitFor("the run was submitted", DIAGNOSED_MS, async () => (await lockstep.call("GET", "/api/runs")).find(({ name }) => name === RUN));
  const open = async (page, tab) => {
    await openAt(page, lockstep, `/runs/${run.id}?tab=${tab}`);
    await page.getByRole("heading", { name: run.id, exact: true }).waitFor();
  };

  await t.test("the time axis leads to what happened, with keys too, and is also a list", async (t) => {
    const page = await openPage(t, browser);
    await open(page, "summary");
    const axis = page.getByTestId("time-axis");
    const marks = (lane) => axis.locator(`[data-testid=axis-lane][data-lane=${lane}]`).getByTestId("axis-mark");
    await marks("attempts").first().waitFor();
    assert.match(await marks("attempts").first().getAttribute("title"), /^since \S.* Attempt 1 /);
    await marks("states").first().waitFor();
    await axis.getByTestId("axis-as-list").click();
    await axis.getByTestId("axis-list").getByRole("link", { name: /Rank 17/ }).first().waitFor({ timeout: DIAGNOSED_MS });
    // A warning has another symbol than a critical diagnosis.
    const isMarked = async () => (await page.getByTestId("marks-text").textContent()).includes("◆ Rank 17");
    await waitFor("the diagnosis is marked in the charts", SHOWN_MS, isMarked);
    await page.getByTestId("marks").uncheck();
    await waitFor("only attempts are marked", SHOWN_MS, async () => !(await isMarked()));
    assert.match(page.url(), /marks=attempts/);
    await page.getByTestId("marks").check();
    assert.doesNotMatch(page.url(), /marks=/);
    const stepTime = page.locator('[data-testid=chart][data-title="Step time"]');
    await scrollToDrawn(stepTime);
    await waitFor("the slowest rank is named", SHOWN_MS, async () => /^slowest rank\s+[\d.]+ m?s · rank \d+\s/m.test(await stepTime.getByTestId("chart-legend").innerText()));
    await marks("attempts").first().focus();
    await page.keyboard.press("ArrowDown");
    await waitFor("a mark of the next lane has the focus", SHOWN_MS, () => page.evaluate(() => document.activeElement.closest("[data-testid=axis-lane]")?.dataset.lane === "states"));
    assert.equal(await axis.locator("[data-axis][tabindex='0']").count(), 1, "the tab key reaches one mark");
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "run-time-axis");
    await marks("diagnoses").first().press("Enter");
    await page.waitForURL(/\/diagnoses\/./);
  });

  await t.test("the first diagnosis of the run offers its action, and each other one is a line with a link", async (t) => {
    const page = await openPage(t, browser);
    let listed;
    let stream;
    let pushed = false;
    await page.routeWebSocket("**/api/stream*", (socket) => {
      stream = socket;
      socket.connectToServer().onMessage((message) => {
        const push = readPush(message);
        if (push.type === "diagnoses") listed = push;
        // Changes of the collector's list do not fit the list below.
        if (!pushed || !push.type.startsWith("diagnoses")) socket.send(message);
      });
    });
    await open(page, "summary");
    const card = page.getByTestId("diagnosis");
    const action = card.getByTestId("next-action");
    await action.waitFor({ timeout: DIAGNOSED_MS });
    const href = await action.getAttribute("href");
    assert.equal(href, await card.getByRole("link", { name: "Evidence and actions" }).getAttribute("href"));
    const { diagnosis: real } = await lockstep.call("GET", `/api${href}`);
    pushed = true;
    stream.send(JSON.stringify({ ...listed, diagnoses: [real, { ...real, id: "other", fingerprint: "other", rule: "OtherProblem" }] }));
    const other = page.locator("[data-testid=also][data-rule=OtherProblem]");
    assert.equal(await other.getByRole("link").getAttribute("href"), "/diagnoses/other");
    assert.equal(await card.count(), 1);
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "run-diagnoses");
    await action.press("Enter");
    await page.waitForURL(/\/diagnoses\/[^/]+$/);
    const first = page.getByTestId("action").first();
    await waitFor("the action has the focus", SHOWN_MS, () => first.evaluate((element) => element === document.activeElement));
    assert.equal(await page.getByRole("dialog").count(), 0, "nothing is carried out");
  });

  await t.test("the map requests only new columns, and a value leads to the log of its rank", async (t) => {
    const page = await openPage(t, browser);
    const frames = [];
    let watch = {};
    await page.routeWebSocket("**/api/stream*", (socket) => {
      const server = socket.connectToServer();
      socket.onMessage((text) => {
        const request = JSON.parse(text);
        if (isMap(request)) watch = request;
        server.send(text);
      });
      server.onMessage((message) => {
        const { type, id, reset, times } = readPush(message);
        if (type === "frame" && id === watch.id) frames.push({ reset, columns: times });
        socket.send(message);
      });
    });
    await open(page, "ranks");
    const map = page.getByTestId("rank-map");
    await waitFor("some columns are measured", DIAGNOSED_MS, async () => Number(await map.getAttribute("data-measured")) > 2);
    assert.ok(Number(await map.getAttribute("data-ranks")) > 17);
    await waitFor("columns arrived", SHOWN_MS, () => frames.length > 2);
    assert.deepEqual(frames[0], { reset: true, columns: COLUMNS });
    for (const frame of frames.slice(1, 3)) assert.ok(!frame.reset && frame.columns < 10, JSON.stringify(frame));
    assert.notEqual(await page.getByTestId("map-measure").inputValue(), "step", "ranks that wait for the late one have its step time");
    const words = page.getByTestId("map-words");
    const cells = page.getByTestId("map-cells");
    let tries = 0;
    await waitFor("the rank that the diagnosis names stands out", SHOWN_MS, async () => {
      // Again each time: more ranks may have started.
      const { width, height } = await cells.boundingBox();
      const row = height / Number(await map.getAttribute("data-ranks"));
      await cells.hover({ position: { x: width - 3 - 10 * (tries++ % 5), y: 17.5 * row } });
      const [, worst, unit, more, unitOfMore] = /^rank 17 · .* · worst ([\d.]+) (m?s) · .*?([\d.]+) (m?s) above the median of the ranks$/.exec(await words.innerText()) ?? [];
      const seconds = (size, unit) => Number(size) * (unit === "s" ? 1 : 0.001);
      return seconds(more, unitOfMore) > 0.1 * seconds(worst, unit);
    });
    await page.mouse.move(0, 0);
    await waitFor("no value is selected", SHOWN_MS, async () => (await words.innerText()) === "");
    await cells.focus();
    await page.keyboard.press("ArrowLeft");
    await page.keyboard.press("ArrowDown");
    await waitFor("a value is described", SHOWN_MS, async () => {
      // Back and forth near the newest columns: older ones may be from before the run, and the means may come late.
      await page.keyboard.press(tries++ % 8 < 4 ? "ArrowLeft" : "ArrowRight");
      return /^rank 1 · (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d · step \d+ · worst [\d.]+ m?s · mean [\d.]+ m?s · [\d.]+ m?s (above|below) the median of the ranks$/.test(await words.innerText());
    });
    const [heard, seen] = await textsAtOnce(page, "#map-pointed", "[data-testid=map-words]");
    assert.equal(heard, seen, "a screen reader hears the same");
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "run-map");
    await page.keyboard.press("Enter");
    await page.waitForURL(/\?tab=log&attempt=\d+&rank=1$/);
    const chosen = page.getByTestId("log-of").locator("option:checked");
    await waitFor("the log of the rank is chosen", SHOWN_MS, async () => /^rank 1 stdout/.test(await chosen.innerText()));
    await page.goBack();
    await map.waitFor();
    await page.getByTestId("map-measure").selectOption("data");
    assert.match(page.url(), /map=data/);
    await waitFor("the other measure is requested", SHOWN_MS, () => watch.query.startsWith("(max_over_time(train_data_seconds_max"));
  });

  await t.test("the map of 1,024 ranks fits the screen, and the late rank is visible", async (t) => {
    const page = await openPage(t, browser, { width: 1440, height: 900 });
    const begin = Date.now() - COLUMNS * STEP_MS;
    const times = Array.from({ length: COLUMNS }, (_, n) => begin + n * STEP_MS);
    let push;
    await page.routeWebSocket("**/api/stream*", (socket) => {
      const server = socket.connectToServer();
      socket.onMessage((text) => {
        const request = JSON.parse(text);
        if (!isMap(request)) return server.send(text);
        push = (frame) => socket.send(JSON.stringify({ type: "frame", id: request.id, ...frame }));
        push({ reset: true, times_ms: times, series: measured(COLUMNS, 0.5) });
      });
    });
    await open(page, "ranks");
    const cells = page.getByTestId("map-cells");
    await cells.waitFor();
    await waitFor("two ranks share a row", SHOWN_MS, async () => (await cells.boundingBox())?.height === RANKS / 2);
    const row = LATE_RANK / 2;
    const colour = (x, y) => cells.locator("canvas").evaluate((canvas, [x, y]) => [...canvas.getContext("2d").getImageData(x < 0 ? canvas.width + x : x, y, 1, 1).data].join(), [x, y]);
    await waitFor("the late rank is drawn", SHOWN_MS, async () => (await colour(200, row)) === LATE_COLOUR);
    assert.equal(await colour(-1, row), LATE_COLOUR);
    const usual = await colour(200, 100);
    assert.notEqual(usual, LATE_COLOUR);
    await cells.hover({ position: { x: 200, y: row + 0.5 } });
    await page.getByTestId("map-words").getByText(/^ranks 700 to 701, most different: rank 700 · .* · step \d+ · worst 500\.0 ms · 100\.0 ms above the median of the ranks$/).waitFor();
    push({ reset: false, times_ms: [times.at(-1) + STEP_MS], series: measured(1, 0.4) });
    await waitFor("the new column is drawn", SHOWN_MS, async () => (await colour(-1, row)) === usual);
    assert.equal(await colour(20, row), LATE_COLOUR, "the older columns stay");
  });

  await t.test("in dark mode the page is readable, and on a phone it is not cut off", async (t) => {
    const page = await openPage(t, browser, { dark: true, width: 390, height: 844 });
    for (const tab of ["summary", "ranks"]) {
      await open(page, tab);
      await page.getByTestId(tab === "ranks" ? "map-cells" : "axis-mark").first().waitFor();
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, tab);
      assert.deepEqual(await accessibilityFaults(page), [], tab);
    }
  });
});

test("a copy of a run", async (t) => {
  const lockstep = await startLockstep(t);
  const browser = await startBrowser(t);
  // Two nodes, so that the run waits for the second one and starts no process.
  const spec = { name: "original", recipe: "ddp", set: { steps: "7" }, nodes: 2, env: { NCCL_DEBUG: "INFO" }, secrets: { HF_TOKEN: SECRET }, checkpoint_dir: "/srv/shared", checkpoint_dir_is_mine: true };
  const { id } = await lockstep.call("POST", "/api/runs", spec);

  await t.test("the form has the values of the copied run, and no secrets", async (t) => {
    const page = await openPage(t, browser);
    await openAt(page, lockstep, `/runs/${id}`);
    await page.getByTestId("clone").click();
    await page.waitForURL(/\/runs\/new\?from=original-/);
    const notice = page.getByTestId("copied-from");
    await notice.getByText(/such as those of secrets, are taken from that run/).waitFor();
    const value = (name) => page.locator(`[name=${name}]`).inputValue();
    assert.equal(await value("set"), "steps=7");
    assert.equal(await value("nodes"), "2");
    assert.equal(await value("name"), "original");
    assert.equal(await value("checkpoint_dir"), "/srv/shared");
    assert.equal(await value("env"), "NCCL_DEBUG=INFO");
    assert.equal(await value("secrets"), "HF_TOKEN");
    assert.equal(await page.getByLabel("Value of HF_TOKEN").inputValue(), "");
    assert.ok(!(await page.content()).includes(SECRET));
    assert.deepEqual(await accessibilityFaults(page), []);
    await page.locator("[name=set]").fill("steps=8");
    await page.getByTestId("submit-run").click();
    await page.waitForURL(/\/runs\/original-/);
    const copy = await lockstep.call("GET", `/api/runs/${new URL(page.url()).pathname.split("/").at(-1)}`);
    assert.notEqual(copy.id, id);
    const { set, nodes, env, secrets, checkpoint_dir } = copy.spec;
    assert.deepEqual({ set, nodes, env, checkpoint_dir }, { set: { steps: "8" }, nodes: 2, env: spec.env, checkpoint_dir: "/srv/shared" });
    assert.deepEqual(Object.keys(secrets), ["HF_TOKEN"]);
    assert.equal(copy.spec.checkpoint_dir_is_mine, undefined, "a copy does not own a folder that it shares");
  });

  await t.test("the link to a new run empties the form", async (t) => {
    const page = await openPage(t, browser);
    await openAt(page, lockstep, `/runs/new?from=${id}`);
    await page.getByTestId("copied-from").getByRole("link", { name: id }).waitFor();
    await page.getByRole("navigation").getByRole("link", { name: "New run" }).click();
    await page.getByTestId("copied-from").waitFor({ state: "detached" });
    assert.equal(await page.locator("[name=set]").inputValue(), "steps=200");
  });

  await t.test("a spike of one second between two points of a chart is visible, and the table names its rank", async (t) => {
    await writeSamples(lockstep, powerWithSpike(id));
    const page = await openPage(t, browser);
    await openAt(page, lockstep, `/runs/${id}?tab=hardware`);
    await page.getByTestId("span").selectOption({ label: "1 hour" });
    const chart = page.locator('[data-testid=chart][data-title="Power"]');
    await scrollToDrawn(chart);
    const rows = chart.getByTestId("chart-legend").locator("tbody tr");
    const row = (rank) => rows.filter({ hasText: `rank ${rank}` });
    await waitFor("the greatest value is that of the spike", SHOWN_MS, async () => /^rank 5\s+300 W \(over \d+ min old\)\s+300 W\s+700 W$/.test((await row(SPIKE_RANK).innerText()).trim()));
    assert.match((await row(4).innerText()).trim(), /300 W$/);
    await chart.getByRole("button", { name: "Max", exact: true }).click();
    assert.match(await rows.first().innerText(), /rank 5/);
    await waitFor("the spike is drawn above the lines", SHOWN_MS, async () => (await strongest(chart)).grey > GRID_ALPHA);
    assert.equal((await strongest(chart)).coloured, 0, "its own band would be one of eight");
    await row(SPIKE_RANK).getByRole("button").click();
    await waitFor("the line that is alone has its own band", SHOWN_MS, async () => (await strongest(chart)).coloured > GRID_ALPHA);
  });
});

/** Returns the alpha of the strongest grey and of the strongest coloured pixel in the upper third of a chart. */
function strongest(chart) {
  return chart.locator(".uplot").evaluate((plot) => {
    const canvas = plot.querySelector("canvas");
    const [inner, outer] = [".u-over", "canvas"].map((part) => plot.querySelector(part).getBoundingClientRect());
    const scale = canvas.width / outer.width;
    const [left, top, width, height] = [inner.left - outer.left + 2, inner.top - outer.top + 2, inner.width - 4, inner.height / 3].map((size) => Math.round(size * scale));
    const { data } = canvas.getContext("2d").getImageData(left, top, width, height);
    const found = { grey: 0, coloured: 0 };
    for (let at = 0; at < data.length; at += 4) {
      const [red, green, blue, alpha] = data.slice(at, at + 4);
      // Colours of pixels that are nearly transparent are not exact.
      if (alpha < 32) continue;
      const kind = Math.max(red, green, blue) - Math.min(red, green, blue) > 40 ? "coloured" : "grey";
      found[kind] = Math.max(found[kind], alpha);
    }
    return found;
  });
}

/** Five minutes of the power of eight GPUs, one sample per second, half an hour ago; one sample between two points of the chart is higher. */
function powerWithSpike(run) {
  const begin = Math.floor((Date.now() - 30 * MINUTE_MS) / CHART_STEP_MS) * CHART_STEP_MS;
  const spike = begin + 2 * MINUTE_MS + 2_000;
  const times = Array.from({ length: 300 }, (_, n) => begin + n * 1_000);
  return Array.from({ length: 8 }, (_, rank) => {
    const gpu = { node: "node-1", gpu: String(rank) };
    const watts = (at) => (rank === SPIKE_RANK && at === spike ? SPIKE_WATTS : 300);
    return [
      { labels: { __name__: "gpu_power_watts", ...gpu }, samples: times.map((at) => [at, watts(at)]) },
      { labels: { __name__: "gpu_assignment_info", ...gpu, rank: String(rank), run }, samples: times.map((at) => [at, 1]) },
    ];
  }).flat();
}

/** Returns true for the request of the map's values. */
const isMap = ({ op, query }) => op === "watch_range" && query.includes('"of", "typical"');

/** The values of all ranks in some columns; one rank takes `late` seconds. */
function measured(columns, late) {
  const column = (labels, value) => ({ labels, values: Array(columns).fill(value) });
  const ranks = Array.from({ length: RANKS }, (_, rank) => column({ rank: String(rank), node: `node-${rank >> 3}` }, rank === LATE_RANK ? late : 0.4));
  return [...ranks, column({ of: "typical" }, 0.4), column({ of: "step" }, 1_200)];
}
