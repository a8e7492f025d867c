// Reports from inside a run: the mesh of its ranks, what could not be observed, what its script logs; and the network between its nodes.
// The collector is real. The run is simulated, with the types of the API.

import assert from "node:assert/strict";
import test from "node:test";

import { accessibilityFaults, openAt, openPage, picture, scrollToDrawn, startBrowser, startLockstep, waitFor } from "./harness.mjs";

const RUN = "meshed-1";
const BEGAN_MS = Date.now() - 300_000;
const NODES = ["node-a", "node-b"];

test("a run from inside", async (t) => {
  const lockstep = await startLockstep(t);
  const browser = await startBrowser(t);

  await t.test("a mesh is a grid of ranks with their states, and selecting one shows its group along the chosen axis", async (t) => {
    const { page, push } = await openRun(t, browser, lockstep, [attempt({ mesh: mesh({ data: 2, tensor: 4 }) })], { tab: "ranks" });
    const topology = page.getByTestId("topology");
    await topology.getByTestId("mesh-cell").nth(7).waitFor();
    assert.equal(await topology.getByTestId("mesh-axes").innerText(), "data 2 × tensor 4");
    const cells = topology.getByTestId("mesh-cell");
    assert.deepEqual(await cells.evaluateAll((all) => all.map(({ dataset }) => dataset.rank)), ["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert.equal(await cells.nth(5).getAttribute("title"), "rank 5 on node-b: data 1, tensor 1; runs");
    assert.match(await cells.nth(3).innerText(), /failed/);
    assert.match(await cells.nth(6).innerText(), /stuck/);
    const [above, below] = await Promise.all([cells.nth(1).boundingBox(), cells.nth(5).boundingBox()]);
    assert.ok(Math.abs(above.x - below.x) < 1 && above.y < below.y, "a column is one place on the second axis");
    const outlined = () => cells.evaluateAll((all) => all.filter((cell) => getComputedStyle(cell).outlineStyle !== "none").map(({ dataset }) => dataset.rank));
    await cells.nth(5).hover();
    await topology.getByTestId("mesh-group").getByText("Its group along tensor: ranks 4, 5, 6, 7.").waitFor();
    assert.deepEqual(await outlined(), ["4", "5", "6", "7"]);
    await picture(page, "mesh");
    await topology.getByRole("button", { name: "data" }).click();
    assert.equal(await topology.getByRole("button", { name: "data" }).getAttribute("aria-pressed"), "true");
    await cells.nth(5).hover();
    await topology.getByTestId("mesh-group").getByText("Rank 5 at data 1, tensor 1. Its group along data: ranks 1, 5.").waitFor();
    assert.deepEqual(await outlined(), ["1", "5"]);
    await topology.locator("summary").click();
    const row = topology.getByTestId("mesh-table").locator("tbody tr").nth(6);
    assert.equal(await row.innerText(), "6\t1\t2\tnode-b\tstuck");
    for (const [place, rank] of [[cells.nth(5), 5], [row, 6]]) {
      assert.equal(await place.getByRole("link", { name: `Log of rank ${rank}` }).getAttribute("href"), `/runs/${RUN}?tab=log&rank=${rank}`);
    }
    assert.deepEqual(await accessibilityFaults(page), []);
    await cells.nth(5).evaluate((cell) => (cell.dataset.marked = "yes"));
    push([attempt({ mesh: mesh({ data: 2, tensor: 4 }), stalled: 5 })]);
    await cells.nth(5).getByText("stuck").waitFor();
    assert.equal(await cells.nth(5).getAttribute("data-marked"), "yes", "the cell was kept, not rebuilt");
  });

  await t.test("one axis is a row, three are planes, and positions that no rank has reported are empty", async (t) => {
    const { page, push } = await openRun(t, browser, lockstep, [attempt({ mesh: mesh({ shard: 8 }) })], { tab: "ranks" });
    const topology = page.getByTestId("topology");
    await topology.getByTestId("mesh-cell").nth(7).waitFor();
    const tops = await topology.getByTestId("mesh-cell").evaluateAll((all) => all.map((cell) => cell.offsetTop));
    assert.equal(new Set(tops).size, 1, "a row");
    const cube = mesh({ pipeline: 2, data: 2, tensor: 2 });
    push([attempt({ mesh: { ...cube, ranks: cube.ranks.slice(0, 7) } })]);
    await topology.getByRole("heading", { name: "tensor 1" }).waitFor();
    assert.deepEqual(await topology.getByRole("heading", { level: 3 }).allInnerTexts(), ["tensor 0", "tensor 1"]);
    await topology.getByTitle("no rank has reported this coordinate").waitFor();
    await topology.scrollIntoViewIfNeeded();
    await picture(page, "mesh-planes");
  });

  await t.test("on a phone and in dark mode the mesh, the network and the logged values can be read", async (t) => {
    const whole = attempt({ mesh: mesh({ replicate: 1, shard: 8 }), bandwidth: bandwidth(), unseen: unseen() });
    const { page } = await openRun(t, browser, lockstep, [whole], { dark: true, width: 390, height: 844 });
    for (const [tab, shown] of [["Summary", "small-chart"], ["Memory and GPUs", "way"], ["Ranks", "mesh-cell"]]) {
      await page.getByTestId("tabs").getByRole("button", { name: tab, exact: true }).click();
      await page.getByTestId(shown).first().waitFor();
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, tab);
      assert.deepEqual(await accessibilityFaults(page), [], tab);
    }
    await page.getByTestId("topology").scrollIntoViewIfNeeded();
    await picture(page, "mesh-dark-phone");
    const edges = (scroll) =>
      page.getByTestId("topology").evaluate((section, scroll) => {
        const fade = section.querySelector(".more-right");
        const row = fade.parentElement;
        row.scrollLeft = scroll ? row.scrollWidth : 0;
        const last = [...section.querySelectorAll("[data-testid=mesh-cell]")].at(-1);
        const [fading, cell, shown] = [fade, last, row].map((element) => element.getBoundingClientRect());
        return { fadeLeft: fading.left, fadeRight: fading.right, lastRight: cell.right, shownRight: shown.right };
      }, scroll);
    const begin = await edges(false);
    assert.ok(begin.lastRight > begin.shownRight, "the last rank is cut off");
    assert.ok(Math.abs(begin.fadeRight - begin.shownRight) < 4, `the right edge fades: ${JSON.stringify(begin)}`);
    const end = await edges(true);
    assert.ok(end.lastRight < end.shownRight && end.lastRight <= end.fadeLeft + 1, `nothing fades at the end: ${JSON.stringify(end)}`);
  });

  await t.test("the network between nodes is a table of pairs, the slow ones marked, with the limit", async (t) => {
    const { page } = await openRun(t, browser, lockstep, [attempt({ bandwidth: bandwidth() })], { tab: "hardware" });
    const network = page.getByTestId("bandwidth");
    await network.waitFor();
    const rule = await network.getByTestId("bandwidth-rule").innerText();
    assert.equal(rule, "Slow is less than 2.88 GB/s, 25 % of the 11.5 GB/s between the fastest nodes. 3 pairs are slow.");
    const ways = network.getByTestId("way");
    assert.equal(await ways.count(), 12);
    const slow = network.locator("[data-testid=way][data-slow=true]");
    assert.deepEqual(await slow.evaluateAll((all) => all.map(({ title }) => title)), ["node-a", "node-b", "node-d"].map((node) => `from ${node} to node-c: 0.52 GB/s, slow`));
    assert.match(await slow.first().innerText(), /0\.52\s*slow/);
    const paint = (way) => way.evaluate((cell) => getComputedStyle(cell).backgroundColor);
    assert.notEqual(await paint(slow.first()), await paint(ways.first()), "what goes through shows in the colour");
    await network.scrollIntoViewIfNeeded();
    await picture(page, "bandwidth");
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("what could not be observed is listed, and only if there is any", async (t) => {
    const { page, push } = await openRun(t, browser, lockstep, [attempt({ unseen: unseen() })]);
    const lines = page.getByTestId("unseen").locator("li");
    await lines.nth(1).waitFor();
    assert.deepEqual(await lines.allInnerTexts(), ["Ranks 0–3, 7: not watched from inside: Python ignores PYTHONPATH there.", "Rank 5: no step was seen."]);
    await picture(page, "unseen");
    push([attempt({})]);
    await page.getByTestId("unseen").waitFor({ state: "detached" });
    assert.equal(await page.getByTestId("topology").count(), 0);
    assert.equal(await page.getByTestId("bandwidth").count(), 0);
  });

  await t.test("RPC, buffer depth, staleness and pipeline bubble have a chart where the run has these series, and no empty one", async (t) => {
    const chart = (page, title) => page.locator(`[data-testid=chart][data-title="${title}"]`);
    const shown = {
      "RPC latency": ["train_rpc_seconds", 0.012, /rank 0\s+12 ms/],
      "Longest RPC": ["train_rpc_seconds_max", 2.5, /rank 0\s+2\.5 s/],
      "Buffer depth": ["train_rpc_buffer_depth", 3, /rank 0\s+3\b/],
      "Gradient staleness": ["train_gradient_staleness_steps", 1.5, /rank 0\s+1\.5\b/],
      "Pipeline bubble": ["train_pipeline_bubble_ratio", 0.25, /rank 0\s+25 %/],
    };
    for (const missing of ["Pipeline bubble", "RPC latency"]) {
      const measured = Object.entries(shown).filter(([title]) => title !== missing);
      const series = Object.fromEntries(measured.map(([, [name, value]]) => [name, value]));
      const { page } = await openRun(t, browser, lockstep, [attempt({})], { series });
      for (const [title, [, , words]] of measured) {
        await chart(page, title).waitFor();
        let legend = "";
        await waitFor(`${title} has its value`, 15_000, async () => {
          // Again each time: charts above it may have appeared since.
          await chart(page, title).scrollIntoViewIfNeeded();
          legend = await chart(page, title).getByTestId("chart-legend").innerText();
          return words.test(legend);
        }).catch((error) => assert.fail(`${error.message}: ${legend}`));
      }
      assert.equal(await chart(page, missing).isVisible(), false, missing);
      assert.deepEqual(await accessibilityFaults(page), []);
      await picture(page, `optional-charts-without-${missing.toLowerCase().replaceAll(" ", "-")}`);
    }
  });

  await t.test("measured memory is beside its plan, and only if there is a plan", async (t) => {
    const { page } = await openRun(t, browser, lockstep, [attempt({})], { tab: "hardware", memory: { compared: compared() } });
    const table = page.getByTestId("planned-memory");
    await table.getByText("rank 5 on node-b, which has the highest peak of 8 ranks").waitFor();
    const rows = await table.locator("tbody tr").evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.innerText)));
    assert.deepEqual(rows, [
      ["optimizer states", "8.0 GiB", "–", ""],
      ["all-gathered units (estimate)", "2.0 GiB", "–", ""],
      ["Allocated, peak", "10.0 GiB", "11.0 GiB", "+10.0 %"],
      ["Reserved, peak", "–", "14.0 GiB", ""],
      ["Fragmentation: reserved − allocated", "–", "3.0 GiB", ""],
      ["Kept for the backward pass, highest of any rank", "4.0 GiB", "3.0 GiB", "−25.0 %"],
    ]);
    assert.deepEqual(await table.locator("li").allInnerTexts(), ["The batch is not planned."]);
    assert.deepEqual(await accessibilityFaults(page), []);
    await table.scrollIntoViewIfNeeded();
    await picture(page, "planned-memory");
    const other = await openRun(t, browser, lockstep, [attempt({})], { tab: "hardware", memory: { unknown: "the model of a script is not known" } });
    await other.page.getByTestId("memory").waitFor();
    assert.equal(await other.page.getByTestId("planned-memory").count(), 0);
  });

  await t.test("reports that the collector could not read are listed with advice", async (t) => {
    const report = { attempt: 1, node: "node-a", kind: "gpu_swapped", reason: "unknown_kind", count: 2, bytes: 40, last_ms: BEGAN_MS };
    const { page } = await openRun(t, browser, lockstep, [attempt({})], {}, { unread_reports: [report] });
    const lines = page.getByTestId("unread").locator("li");
    await lines.first().waitFor();
    assert.deepEqual(await lines.allInnerTexts(), ["node node-a sent 2 reports `gpu_swapped` from a newer agent, which this collector does not support. Upgrade the collector: it then reads what was stored"]);
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("what a script logs has a small chart for each name, the first dozen at once", async (t) => {
    const { page } = await openRun(t, browser, lockstep, [attempt({})]);
    const charts = page.getByTestId("small-chart");
    await charts.nth(11).waitFor();
    assert.equal(await charts.count(), 12);
    await scrollToDrawn(charts.nth(11));
    const names = await charts.evaluateAll((all) => all.map(({ dataset }) => dataset.name));
    assert.deepEqual(names, [...names].sort());
    assert.match(await charts.first().innerText(), /eval\/accuracy\s*0\.95/);
    const coloured = (canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return data.some((_, at) => at % 4 === 0 && data[at + 3] > 100 && Math.max(...data.slice(at, at + 3)) - Math.min(...data.slice(at, at + 3)) > 60);
    };
    await scrollToDrawn(charts.first());
    await waitFor("the first has its line", 15_000, () => charts.first().locator("canvas").evaluate(coloured));
    await page.getByTestId("multiples").scrollIntoViewIfNeeded();
    await picture(page, "logged");
    await page.getByRole("button", { name: "Show all 14" }).click();
    await scrollToDrawn(charts.nth(13));
    assert.deepEqual(await accessibilityFaults(page), []);
  });
});

/** Opens the page of a run with these attempts; `push` changes them. `series`: a value of rank 0 and 1 by the name of the series. */
async function openRun(t, browser, lockstep, attempts, { tab = "summary", series = {}, memory = {}, ...look } = {}, more = {}) {
  const page = await openPage(t, browser, look);
  const streams = [];
  let now = attempts;
  const summary = { id: RUN, name: "meshed", program: "/srv/train.py", state: "running", attempt: 1, nodes: NODES, world_size: 8, submitted_ms: BEGAN_MS, started_ms: BEGAN_MS };
  const send = ({ socket, id }) => socket.send(JSON.stringify({ type: "run", id, run: { ...summary, spec: { script: "/srv/train.py" }, attempts: now, ...more } }));
  await page.routeWebSocket("**/api/stream*", (socket) => {
    const server = socket.connectToServer();
    socket.onMessage((text) => {
      const request = JSON.parse(text);
      if (request.op === "watch_run") {
        streams.push({ socket, id: request.id });
        send(streams.at(-1));
      } else if (request.op === "watch_range" && request.query.includes("train_logged_value")) {
        socket.send(JSON.stringify({ type: "frame", id: request.id, ...logged() }));
      } else if (request.op === "watch_range" && nameIn(request.query, series)) {
        const name = nameIn(request.query, series);
        socket.send(JSON.stringify({ type: "frame", id: request.id, ...constant(series[name]) }));
      } else if (request.op !== "watch_log") server.send(text);
    });
  });
  await page.route(`**/api/runs/${RUN}/**`, (route) => route.fulfill({ contentType: "application/json", body: JSON.stringify({ folder: "", checkpoints: [] }) }));
  await page.route(`**/api/runs/${RUN}/memory`, (route) => route.fulfill({ contentType: "application/json", body: JSON.stringify(memory) }));
  await openAt(page, lockstep, `/runs/${RUN}?tab=${tab}`);
  await page.getByRole("heading", { name: RUN }).waitFor();
  const push = (changed) => {
    now = changed;
    streams.forEach(send);
  };
  return { page, push };
}

/** Eight ranks on two nodes: one has failed, one is stuck. */
function attempt({ stalled, ...more }) {
  const failed = { rank: 3, code: 1, out_of_memory: false, error_type: "ValueError", message: "bad sample", at_ns: 1 };
  const stall = { since_ms: BEGAN_MS + 100_000, step: 40, cause: "stopped" };
  const rank = (number) => ({ rank: number, local_rank: number % 4, pid: 4000 + number, step: 127, ...(number === 3 && { exit: failed }), ...([6, stalled].includes(number) && { stall }) });
  const node = (name, at) => ({ node: name, node_rank: at, command: "torchrun train.py", ranks: [0, 1, 2, 3].map((local) => rank(at * 4 + local)) });
  return { attempt: 1, cause: "submitted", started_ms: BEGAN_MS, last_step: 127, nodes: NODES.map(node), ...more };
}

/** A mesh with all the ranks of its axes, in order. */
function mesh(axes) {
  const sizes = Object.values(axes);
  const ranks = sizes.reduce((all, size) => all * size, 1);
  const coordinates = (rank) => sizes.map((size, axis) => Math.floor(rank / sizes.slice(axis + 1).reduce((all, one) => all * one, 1)) % size);
  return { axes: Object.keys(axes), sizes, ranks: Array.from({ length: ranks }, (_, rank) => ({ rank, coordinates: coordinates(rank) })) };
}

/** Four nodes, one of which receives slowly. */
function bandwidth() {
  const nodes = ["node-a", "node-b", "node-c", "node-d"];
  const pairs = nodes.flatMap((from) => nodes.filter((to) => to !== from).map((to) => [from, to]));
  const figures = pairs.map(([from, to], n) => (to === "node-c" ? { from, to, mib_s: 500, slow: true } : { from, to, mib_s: 9_000 + n * 200 }));
  return { rounds: 3, rounds_done: 3, usual_mib_s: 11_000, slow_below_mib_s: 2_750, figures };
}

const unseen = () => [
  { ranks: "0-3,7", words: "not watched from inside: Python ignores PYTHONPATH there" },
  { ranks: "5", words: "no step was seen" },
];

/** The name of the series that a query of one series requests; nothing if it is not one of these. */
const nameIn = (query, series) => Object.keys(series).find((name) => query.startsWith(`${name}{`));

/** Two ranks with the same value for five minutes. */
function constant(value) {
  const times_ms = Array.from({ length: 300 }, (_, n) => BEGAN_MS + n * 1_000);
  return { reset: true, times_ms, series: ["0", "1"].map((rank) => ({ labels: { rank }, values: times_ms.map(() => value) })) };
}

/** Memory of eight ranks beside its plan. */
function compared() {
  const GIB = 2 ** 30;
  return {
    attempt: 1,
    rank: 5,
    node: "node-b",
    ranks: 8,
    allocated_bytes: 11 * GIB,
    reserved_bytes: 14 * GIB,
    planned_bytes: 10 * GIB,
    peak_at: "in the optimizer's step",
    parts: [
      { name: "optimizer states", bytes: 8 * GIB, is_estimate: false },
      { name: "all-gathered units", bytes: 2 * GIB, is_estimate: true },
    ],
    saved: { planned_bytes: 4 * GIB, measured_bytes: 3 * GIB },
    left_out: ["The batch is not planned."],
  };
}

/** Fourteen names, as a script logs them. */
function logged() {
  const times_ms = Array.from({ length: 300 }, (_, n) => BEGAN_MS + n * 1_000);
  const names = ["eval/accuracy", "eval/loss", "lr", ...Array.from({ length: 11 }, (_, n) => `layer/${String(n).padStart(2, "0")}/rms`)];
  const value = (name, n) => (name === "eval/accuracy" ? 0.95 - Math.exp(-n / 60) * 0.85 + (n === 299 ? Math.exp(-299 / 60) * 0.85 : 0) : name === "lr" ? 3e-4 * (1 - n / 300) : 2 + Math.sin(n / 30 + name.length));
  return { reset: true, times_ms, series: names.map((name) => ({ labels: { name }, values: times_ms.map((_, n) => value(name, n)) })) };
}
