// Actions on a run: a knob is applied, judged and reverted, a node is excluded, a trace is recorded. The collector is real. The run is
// simulated, with the types of the API, because a verdict needs two attempts of 20 steps, and a trace needs PyTorch's profiler.

import assert from "node:assert/strict";
import test from "node:test";

import { accessibilityFaults, openAt, openPage, picture, startBrowser, startLockstep, waitFor } from "./harness.mjs";

const RUN = "mocked-2";
const BEGAN_MS = Date.now() - 300_000;
const JSON_TYPE = "application/json";
const COST = "Ends attempt 1 and restarts with 4 ranks from the checkpoint of step 120; at most 7 steps are trained again, about 3 s.";
const FLAG = { way: "flag", flag: "--num-workers" };
const BY_RESTART = { in_place: false, cost: COST, undo: "Revert it on the page of the run, or with `lockstep run revert mocked-2`.", steps_lost: 7, ranks: 4 };

test("actions on a run", async (t) => {
  const lockstep = await startLockstep(t);
  const browser = await startBrowser(t);

  await t.test("a knob is applied after its cost is shown, has a verdict with numbers, and is reverted", async (t) => {
    const { page, posted, answer, set } = await openRun(t, browser, lockstep);
    await page.getByTestId("change-knobs").click();
    const knob = page.locator("[data-testid=knob][data-knob=num_workers]");
    assert.match(await knob.innerText(), /data loading processes per rank[\s\S]*Now: as in the script[\s\S]*by a new attempt · --num-workers/);
    assert.match(await page.locator("[data-knob=process_group_timeout_s]").innerText(), /while it trains · injected/);
    assert.match(await page.locator("[data-knob=nccl_ib_timeout]").innerText(), /cannot be changed[\s\S]*no effect: the run uses Gloo/);
    assert.deepEqual(await page.locator("[data-knob=amp] option").allInnerTexts(), ["no change", "off", "bf16", "fp16"]);

    const field = page.getByLabel("New value of num_workers");
    await field.fill("many");
    answer("preview", 422, { detail: "the knob cannot be changed in this way", errors: [{ field: "set.num_workers", message: "num_workers: give a whole number from 0 to 256" }] });
    await field.press("Enter");
    await knob.getByTestId("mistake").getByText("give a whole number from 0 to 256").waitFor();
    assert.equal(await field.getAttribute("aria-invalid"), "true");
    assert.equal(await page.getByRole("dialog").count(), 0, "wrong values open no dialog");
    assert.deepEqual(await accessibilityFaults(page), []);

    await field.fill("4");
    assert.equal(await field.getAttribute("aria-invalid"), "false", "the error was about another value");
    const diff = { knob: "num_workers", new: "4", how: FLAG };
    answer("preview", 200, { ...BY_RESTART, change: { set: [diff], warnings: ["num_workers=4: more than the cores"] } });
    await page.getByRole("button", { name: "Review 1 change…" }).click();
    const dialog = page.getByRole("dialog");
    assert.match(await dialog.getByTestId("change-diff").innerText(), /num_workers: as in the script → 4\s+--num-workers/);
    assert.match(await dialog.getByTestId("change-cost").innerText(), /new attempt\s+Ends attempt 1 .* at most 7 steps are trained again/);
    assert.match(await dialog.getByTestId("change-undo").innerText(), /Undo: Revert it on the page/);
    await dialog.getByText("more than the cores").waitFor();
    await picture(page, "knob-preview");
    assert.deepEqual(await accessibilityFaults(page), []);
    await dialog.getByTestId("auto-revert").check();
    await waitFor("the preview was requested again", 15_000, () => posted.length === 3);
    answer("apply", 409, { detail: "attempt 2 of run mocked-2 is the current one, not 1" });
    await dialog.getByTestId("confirm-change").click();
    await dialog.getByRole("alert").getByText("is the current one, not 1").waitFor();
    answer("apply", 200);
    await dialog.getByTestId("confirm-change").click();
    await dialog.waitFor({ state: "hidden" });
    assert.deepEqual(posted.at(-1), ["apply", { set: { num_workers: "4" }, expected: 1, auto_revert: true, from_start: false, restart: false }]);
    await page.getByTestId("change-requested").getByText("Requested: num_workers=4.").waitFor();
    assert.equal(await field.inputValue(), "", "it is applied");

    set({ ...view(), pending: { set: [diff] } }, []);
    await page.getByTestId("change-pending").getByText("The next one begins with: num_workers=4.").waitFor();
    set(afterChange(diff), [{ attempt: 2, live: 0 }]);
    await page.getByTestId("change-pending").getByText("num_workers=4").waitFor({ state: "detached" });
    const change = page.getByTestId("change");
    await change.getByTestId("verdict").getByText("better").waitFor();
    assert.match(await change.innerText(), /Attempt 2 \(knob applied\)/);
    assert.match(await change.getByTestId("change-figures").innerText(), /Step time\s+400\.0 ms\s+300\.0 ms\s+−25\.0 %/);
    await picture(page, "knob-verdict");
    assert.deepEqual(await accessibilityFaults(page), []);

    const inverse = { knob: "num_workers", old: "4", how: FLAG };
    answer("preview", 200, { ...BY_RESTART, change: { set: [inverse], reverts: 2 }, undo: "Apply num_workers=4 again." });
    await change.getByTestId("revert").click();
    await dialog.getByTestId("change-diff").getByText(/num_workers: 4 → as in the script/).waitFor();
    assert.match(await dialog.getByTestId("change-undo").innerText(), /Apply num_workers=4 again/);
    assert.equal(await dialog.getByTestId("auto-revert").count(), 0);
    await dialog.getByRole("button", { name: "Revert" }).click();
    await dialog.waitFor({ state: "hidden" });
    assert.deepEqual(posted.at(-1), ["revert", { attempt: 2, from_start: false, restart: false }]);
    set(afterRevert(diff, inverse), []);
    await change.nth(1).getByText("reverted").waitFor();
    assert.match(await change.nth(0).innerText(), /Attempt 3 \(knob reverted\)/);
    // The list of what can be reverted is requested after the run has changed.
    await page.getByTestId("revert").waitFor({ state: "detached" });
  });

  await t.test("a change in place shows which ranks have applied it", async (t) => {
    const { page, answer, posted, set } = await openRun(t, browser, lockstep, { tab: "attempts" });
    const diff = { knob: "process_group_timeout_s", new: "1200", how: { way: "injected" } };
    answer("preview", 200, { in_place: true, cost: "Attempt 1 continues.", undo: "Revert it.", ranks: 4, change: { set: [diff] } });
    await page.getByLabel("New value of process_group_timeout_s").fill("1200");
    await page.getByTestId("review-changes").click();
    const dialog = page.getByRole("dialog");
    await dialog.getByTestId("change-cost").getByText("in place").waitFor();
    await dialog.getByTestId("by-restart").check();
    await waitFor("the preview was requested again", 15_000, () => posted.length === 2);
    assert.equal(posted.at(-1)[1].apply.restart, true);
    await dialog.getByTestId("by-restart").uncheck();
    await waitFor("the preview was requested again", 15_000, () => posted.length === 3);
    await dialog.getByTestId("confirm-change").click();
    await dialog.waitFor({ state: "hidden" });
    const live = { no: 1, asked_ms: Date.now(), step: 127, state: "asked", ranks: [0, 1], change: { set: [diff] } };
    const inPlace = (change) => ({ ...view(), attempts: [{ ...view().attempts[0], live: [{ ...live, ...change }] }] });
    set(inPlace({}), [{ attempt: 1, live: 1 }]);
    await page.getByTestId("change-ranks").getByText(/Applied: .*0.*1\. Not yet: .*2.*3\./).waitFor();
    set(inPlace({ state: "taken", ranks: [0, 1, 2, 3] }), [{ attempt: 1, live: 1 }]);
    await page.getByTestId("change").getByText("in all ranks (4)").waitFor();
    await page.getByTestId("revert").click();
    await waitFor("the revert was previewed", 15_000, () => posted.at(-1)[0] === "preview");
    assert.deepEqual(posted.at(-1)[1], { revert: { attempt: 1, live: 1, from_start: false, restart: false } });
  });

  await t.test("a node is excluded only if another one is free, and the dialog says what remains", async (t) => {
    const { page, answer, posted } = await openRun(t, browser, lockstep, { tab: "attempts" });
    answer("preview", 409, { detail: "no other node is free, so run mocked-2 could not continue without node-b" });
    await page.getByRole("button", { name: "Exclude… node-b" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText("Exclude node-b from this run").waitFor();
    await dialog.getByRole("alert").getByText("no other node is free").waitFor();
    assert.equal(await dialog.getByTestId("confirm-change").isDisabled(), true);
    await page.keyboard.press("Escape");
    const words = "node-b is excluded from this run; node-a can be used again; 2 other nodes are free.";
    answer("preview", 200, { ...BY_RESTART, cost: `${COST} ${words}`, undo: "Stop and resume the run: a resumed run may use every node.", change: { restart: true, without: ["node-b"] } });
    await page.getByRole("button", { name: "Exclude… node-b" }).click();
    await dialog.getByTestId("change-cost").getByText(words).waitFor();
    await picture(page, "exclude-node");
    assert.deepEqual(await accessibilityFaults(page), []);
    await dialog.getByTestId("confirm-change").click();
    await dialog.waitFor({ state: "hidden" });
    assert.deepEqual(posted.at(-1), ["exclude", { node: "node-b", expected: 1 }]);
    await page.getByTestId("change-requested").getByText("a restart without node-b").waitFor();
  });

  await t.test("a trace is recorded with the keyboard, and its files can be downloaded", async (t) => {
    const { page, answer, posted } = await openRun(t, browser, lockstep);
    await page.getByTestId("trace").focus();
    await page.keyboard.press("Enter");
    const dialog = page.getByRole("dialog");
    assert.match(await dialog.getByTestId("trace-cost").innerText(), /records rank 0 of attempt 1\. The run continues/);
    await dialog.getByLabel("Rank").fill("x");
    await dialog.getByLabel("Rank").press("Enter");
    await dialog.getByTestId("mistake").getByText("Enter a whole number.").waitFor();
    await dialog.getByLabel("Rank").fill("");
    await dialog.getByTestId("trace-cost").getByText("all ranks of attempt 1").waitFor();
    answer("trace", 422, { detail: "the trace cannot be recorded", errors: [{ field: "steps", message: "record 1 to 100 steps" }] });
    await dialog.getByLabel("Length", { exact: true }).fill("500");
    await dialog.getByTestId("confirm-trace").click();
    await dialog.getByTestId("mistake").getByText("record 1 to 100 steps").waitFor();
    assert.deepEqual(await accessibilityFaults(page), []);
    const traced = (rank, node) => ({ rank, node, trace: { file: `trace-rank-${rank}.json`, bytes: 2 ** 21 } });
    answer("trace", 200, { attempt: 1, at_ms: Date.now(), ranks: [traced(0, "node-a"), { rank: 2, node: "node-b", problem: "the agent of node-b is not connected" }] });
    await dialog.getByLabel("Length", { exact: true }).fill("3");
    await dialog.getByLabel("Length", { exact: true }).press("Enter");
    const file = dialog.getByTestId("trace-file");
    await file.waitFor();
    assert.deepEqual(posted.at(-1), ["trace", { steps: 3 }]);
    assert.equal(await file.getAttribute("href"), `/api/runs/${RUN}/trace?node=node-a&file=trace-rank-0.json&attempt=1`);
    assert.equal(await file.getAttribute("download"), "trace-rank-0.json");
    assert.match(await dialog.getByTestId("trace-result").innerText(), /Rank 0 on node-a: trace-rank-0\.json \(2\.0 MiB\)[\s\S]*Rank 2 on node-b: .*not connected[\s\S]*ui\.perfetto\.dev/);
    await picture(page, "trace");
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("a run without the profiler says how to get traces", async (t) => {
    const { page } = await openRun(t, browser, lockstep, { run: { ...view(), spec: { script: "/srv/train.py" } } });
    await page.getByTestId("trace").click();
    await page.getByTestId("no-trace").getByText("kineto = true").waitFor();
    assert.equal(await page.getByTestId("confirm-trace").count(), 0);
  });

  await t.test("a viewer sees knobs and changes without any action", async (t) => {
    const { token } = await lockstep.call("POST", "/api/tokens", { role: "viewer" });
    const { page, set } = await openRun(t, browser, { ...lockstep, token }, { tab: "attempts" });
    set(afterChange({ knob: "num_workers", new: "4", how: FLAG }), [{ attempt: 2, live: 0 }]);
    await page.getByTestId("change").getByTestId("verdict").waitFor();
    await page.getByTestId("knob").first().waitFor();
    for (const control of ["knob-field", "review-changes", "revert", "exclude", "trace", "change-knobs"]) assert.equal(await page.getByTestId(control).count(), 0, control);
  });

  await t.test("on a phone knobs, changes and dialogs are not cut off", async (t) => {
    const { page, answer, set } = await openRun(t, browser, lockstep, { tab: "attempts", look: { width: 390, height: 844 } });
    const diff = { knob: "num_workers", new: "4", how: FLAG };
    set(afterChange(diff), [{ attempt: 2, live: 0 }]);
    await page.getByTestId("revert").waitFor();
    const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.equal(await overflow(), 0);
    answer("preview", 200, { ...BY_RESTART, change: { set: [diff], reverts: 2 } });
    await page.getByTestId("revert").click();
    await page.getByRole("dialog").getByTestId("change-diff").waitFor();
    assert.equal(await overflow(), 0);
    await picture(page, "knobs-phone");
  });
});

/** Opens the mocked run's page. `answer` decides how a POST is answered, `set` changes the run and the changes that can be reverted, `posted` contains the requests. */
async function openRun(t, browser, lockstep, { run = view(), tab = "summary", look = {} } = {}) {
  const page = await openPage(t, browser, { ...look, expected: /status of 4(09|22)/ });
  const posted = [];
  const answers = {};
  const streams = [];
  let [now, revertible] = [run, []];
  await page.routeWebSocket("**/api/stream*", (socket) => {
    const server = socket.connectToServer();
    socket.onMessage((text) => {
      const { op, id } = JSON.parse(text);
      if (op !== "watch_run") return server.send(text);
      streams.push({ socket, id });
      socket.send(JSON.stringify({ type: "run", id, run: now }));
    });
  });
  await page.route(`**/api/runs/${RUN}/**`, (route) => {
    const request = route.request();
    const path = new URL(request.url()).pathname.split(`/${RUN}/`)[1];
    const reply = (status, body) => route.fulfill({ status, contentType: JSON_TYPE, body: JSON.stringify(body) });
    if (request.method() !== "POST") return reply(200, path === "knobs" ? { knobs: knobs(now), revertible } : path === "actions" ? [] : {});
    posted.push([path, request.postDataJSON()]);
    const { status = 200, body = now } = answers[path] ?? {};
    return reply(status, status === 200 ? body : { type: "about:blank", title: "refused", status, ...body });
  });
  await openAt(page, lockstep, `/runs/${RUN}?tab=${tab}`);
  await page.getByRole("heading", { name: RUN }).waitFor();
  const set = (changed, ids) => {
    [now, revertible] = [changed, ids];
    for (const { socket, id } of streams) socket.send(JSON.stringify({ type: "run", id, run: now }));
  };
  return { page, posted, set, answer: (path, status, body) => (answers[path] = { status, body }) };
}

/** A run in its first attempt, as the stream sends it. */
function view() {
  const rank = (number) => ({ rank: number, local_rank: number % 2, pid: 4000 + number, step: 127 });
  const node = (name, at) => ({ node: name, node_rank: at, command: "torchrun /srv/train.py", ranks: [rank(2 * at), rank(2 * at + 1)] });
  const first = { attempt: 1, cause: "submitted", started_ms: BEGAN_MS, last_step: 127, nodes: [node("node-a", 0), node("node-b", 1)] };
  const summary = { id: RUN, name: "mocked", program: "/srv/train.py", state: "running", attempt: 1, nodes: ["node-a", "node-b"], world_size: 4, submitted_ms: BEGAN_MS - 5_000, started_ms: BEGAN_MS };
  return { ...summary, spec: { name: "mocked", script: "/srv/train.py", kineto: true }, attempts: [first] };
}

/** The run in its second attempt, which a change made. */
function afterChange(diff) {
  const median = (value) => ({ value, low: value, high: value });
  const side = (seconds) => ({ steps: 25, step_seconds: median(seconds), samples_per_second: median(8 / seconds), memory: { kind: "cuda_allocated", bytes: 2 ** 30 }, last_loss: [120, 0.5] });
  const summary = "step time −25.0 %, samples per second +33.3 %";
  const verdict = { decision: "better", summary, before: side(0.4), after: side(0.3), step_time: { value: 0.75, low: 0.7, high: 0.8 }, throughput: { value: 4 / 3, low: 1.2, high: 1.4 }, memory: 1 };
  const [first] = view().attempts;
  const second = { ...first, attempt: 2, cause: "knob applied", knobs: { num_workers: "4" }, change: { set: [diff], auto_revert: true, verdict } };
  return { ...view(), attempt: 2, attempts: [{ ...first, ended_ms: Date.now() }, second] };
}

/** The run in its third attempt, which reverted that change. */
function afterRevert(diff, inverse) {
  const second = afterChange(diff);
  const third = { ...second.attempts[0], ended_ms: undefined, attempt: 3, cause: "knob reverted", change: { set: [inverse], reverts: 2 } };
  return { ...second, attempt: 3, attempts: [...second.attempts, third] };
}

/** Some of the knobs, as the collector lists them. */
function knobs(run) {
  const knob = (name, what, values, more) => ({ name, what, values, live: false, ...more });
  const value = run.attempts.at(-1).knobs?.num_workers;
  return [
    knob("num_workers", "data loading processes per rank", "a whole number from 0 to 256", { how: FLAG, ...(value && { value }) }),
    knob("process_group_timeout_s", "seconds a collective may wait for other ranks before it fails", "a whole number from 1 to 604800", { how: { way: "injected" }, live: true }),
    knob("amp", "the precision of the forward pass", "off, bf16, fp16", { how: { way: "injected" }, choices: ["off", "bf16", "fp16"] }),
    knob("nccl_ib_timeout", "how long InfiniBand waits for an acknowledgement", "a whole number from 1 to 22", { problem: "nccl_ib_timeout has no effect: the run uses Gloo" }),
  ];
}
