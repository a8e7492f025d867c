// The page of a managed run: attempts, stop and resume, checkpoints, logs. The collector is real. The run is simulated, with the types of
// the API, because its faults (a lost rank, an incomplete checkpoint, a refused stop) take minutes on real nodes.

import assert from "node:assert/strict";
import test from "node:test";

import { SHOWN_MS, accessibilityFaults, logIn, openAt, openPage, picture, readPush, scrollToDrawn, startBrowser, startLockstep, waitFor } from "./harness.mjs";

const RUN = "mocked-1";
const FOLDER = "/srv/checkpoints";
const BEGAN_MS = Date.now() - 300_000;
const JSON_TYPE = "application/json";

test("a managed run", async (t) => {
  const lockstep = await startLockstep(t);
  const browser = await startBrowser(t);

  await t.test("attempts show their cause, their checkpoint, the rank that failed first and those that failed because of it", async (t) => {
    const { page } = await openRun(t, browser, lockstep, { tab: "attempts" });
    const attempts = page.getByTestId("attempt");
    await attempts.nth(1).waitFor();
    assert.deepEqual(await attempts.evaluateAll((all) => all.map(({ open }) => open)), [true, false], "the newest is open");
    const newest = attempts.first();
    assert.match(await newest.innerText(), /Attempt 2 \(restart after exception\): active/);
    assert.match(await newest.getByTestId("attempt-facts").innerText(), /last step 127 · resumed from step 120, \/srv\/checkpoints\/step-120/);
    assert.match(await newest.innerText(), /Excluded node-c: its GPU 3 fell off the bus/);
    assert.equal(await newest.getByTestId("attempt-knobs").innerText(), "Knobs: amp=bf16, num_workers=4");
    assert.match(await newest.getByTestId("attempt-warning").innerText(), /warning\s+node-b has driver 575.51, node-a 570.86/);
    assert.match(await newest.getByTestId("rank").nth(3).innerText(), /stuck since .*: a signal or a debugger stopped its process/);
    const first = attempts.nth(1);
    await first.locator("summary").first().click();
    const ranks = first.getByTestId("rank");
    assert.match(await ranks.nth(1).innerText(), /failed first/);
    assert.match(await ranks.nth(1).innerText(), /ValueError: bad sample/);
    const log = new URL(await ranks.nth(1).getByRole("link").getAttribute("href"), page.url());
    assert.match(log.search, /^\?tab=log&attempt=1&rank=\d+$/, "the log of the rank that failed first");
    await ranks.nth(1).locator("summary").click();
    await ranks.nth(1).getByText("train.py\", line 7").waitFor();
    assert.equal(await ranks.nth(0).getByTestId("traceback").count(), 0, "only the rank that failed first has one");
    assert.match(await first.getByTestId("attempt-facts").innerText(), /last step 124 · loss diverged after step 110/);
    assert.match(await ranks.nth(0).innerText(), /secondary failure/);
    assert.doesNotMatch(await ranks.nth(0).innerText(), /failed first/);
    const paleness = (row) => row.evaluate((element) => Number(getComputedStyle(element).opacity));
    assert.ok((await paleness(ranks.nth(0))) < (await paleness(ranks.nth(1))), "what only fell is pale");
    await picture(page, "attempts");
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("a node's command line can be copied, and the provenance of an attempt can be unfolded", async (t) => {
    const { page } = await openRun(t, browser, lockstep, { tab: "attempts" });
    const newest = page.getByTestId("attempt").first();
    const command = await newest.getByTestId("command").first().innerText();
    assert.match(command, /^torchrun --nnodes 2/);
    await newest.getByRole("button", { name: "Copy the command line of node-a" }).click();
    await newest.getByText("Copied").waitFor();
    const provenance = newest.getByTestId("provenance");
    await provenance.locator("summary").click();
    assert.match(await provenance.innerText(), /Commit: abc123\+changes[\s\S]*Seed: 42[\s\S]*EPOCHS=3[\s\S]*torch==2\.9\.0/);
    await page.getByTestId("tabs").getByRole("button", { name: "Log" }).click();
    assert.equal(new URL(page.url()).searchParams.get("tab"), "log", "the tab is in the address");
    const box = page.getByLabel("Search the logs of all ranks");
    await box.focus();
    await page.keyboard.press("Control+V");
    await waitFor("what was copied is pasted", SHOWN_MS, async () => (await box.inputValue()) === command);
  });

  await t.test("charts join the attempts: one line per rank, and a mark where the second attempt began", async (t) => {
    const { page, push } = await openRun(t, browser, lockstep);
    await page.getByTestId("marks").uncheck(); // diagnoses and checkpoints
    await waitFor("each chart has a mark", 15_000, async () => {
      const marks = await page.getByTestId("chart").evaluateAll((charts) => charts.map((chart) => chart.dataset.marks));
      return marks.length > 6 && marks.every((count) => count === "1");
    });
    const loss = page.locator('[data-testid=chart][data-title="Loss"]');
    await scrollToDrawn(loss);
    const names = await loss.getByTestId("chart-legend").locator("tbody th").allInnerTexts();
    assert.deepEqual(names.map((name) => name.trim()), ["rank 0"], "the rank went on on another node");
    await picture(page, "attempts-joined");
    const drawn = () => loss.locator("canvas").evaluate((canvas) => canvas.toDataURL());
    const marked = await drawn();
    push({ run: { ...view().run, attempts: view().run.attempts.slice(1) } });
    await waitFor("the mark goes with the first attempt", 15_000, async () => (await drawn()) !== marked);
  });

  await t.test("a stop shows its cost, can wait for a checkpoint, and shows why it was refused", async (t) => {
    const { page, posted, push, refuse } = await openRun(t, browser, lockstep, { tab: "checkpoints" });
    await page.getByTestId("checkpoint").first().waitFor();
    await page.getByTestId("stop").click();
    await page.getByTestId("loss").getByText("7 steps since the last checkpoint will be lost.").waitFor();
    refuse("stop", 409, "the run is about to restart; stop it in a moment");
    await page.getByLabel(/After this step/).check();
    await picture(page, "stop");
    await page.getByTestId("confirm-stop").click();
    await page.getByRole("alert").getByText("the run is about to restart").waitFor();
    refuse("stop", 200);
    await page.getByTestId("confirm-stop").click();
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    assert.deepEqual(posted.at(-1), ["stop", { after: "step" }]);
    push(view({ stop: { after_step: 131, after_checkpoint: false } }));
    await page.getByTestId("stop-progress").getByText("Stops when every rank has finished step 131.").waitFor();
    await page.getByTestId("stop").click();
    await page.getByLabel(/After the next checkpoint/).check();
    await page.getByTestId("confirm-stop").click();
    await waitFor("it was sent", 15_000, () => posted.length === 3);
    assert.deepEqual(posted.at(-1), ["stop", { after: "checkpoint" }]);
  });

  await t.test("an ended run resumes from a complete checkpoint, or from its start", async (t) => {
    const { page, posted } = await openRun(t, browser, lockstep, { run: ended(), tab: "checkpoints" });
    await page.getByTestId("checkpoint").first().waitFor();
    assert.equal(await page.getByTestId("stop").count(), 0);
    await page.getByTestId("resume").click();
    const choices = page.getByTestId("resume-from");
    const torn = choices.getByLabel(/step 130.*cannot be used: shard 2 of 4 is missing/);
    assert.equal(await torn.isDisabled(), true);
    assert.equal(await choices.getByLabel(/step 120.*7 steps behind the last; 1\.5 GiB/).isChecked(), true, "the furthest that is whole is offered");
    await picture(page, "resume");
    assert.deepEqual(await accessibilityFaults(page), []);
    await page.getByTestId("confirm-resume").click();
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    assert.deepEqual(posted.at(-1), ["resume", { checkpoint: `${FOLDER}/step-120`, from_start: false }]);
    await page.getByTestId("resume").click();
    await choices.getByLabel(/From the start/).check();
    await page.getByTestId("confirm-resume").click();
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    assert.deepEqual(posted.at(-1), ["resume", { from_start: true }]);
  });

  await t.test("checkpoints are listed with size and state; one is pinned", async (t) => {
    const { page, posted, refuse } = await openRun(t, browser, lockstep, { tab: "checkpoints" });
    const rows = page.getByTestId("checkpoint");
    await rows.nth(2).waitFor();
    await page.getByTestId("checkpoint-folder").getByText(`In ${FOLDER}; 12.0 GiB free.`).waitFor();
    await page.getByTestId("checkpoint-trouble").getByText("node-b does not see the folder").waitFor();
    assert.match(await rows.nth(0).innerText(), /step 130[\s\S]*full[\s\S]*incomplete[\s\S]*shard 2 of 4 is missing/);
    assert.match(await rows.nth(1).innerText(), /step 120[\s\S]*in use[\s\S]*1\.5 GiB, 512 MiB unshared[\s\S]*2\.5 s[\s\S]*complete/);
    assert.match(await rows.nth(2).innerText(), /step 110[\s\S]*model only, best/);
    assert.doesNotMatch(await rows.nth(2).innerText(), /in use/);
    const onPrune = await page.getByTestId("on-prune").allInnerTexts();
    assert.deepEqual(onPrune.slice(0, 2), ["Keep: not proven to be this run's: notes.txt", "Keep: the last complete one"]);
    assert.match(onPrune[2], /^Remove: older than the last 1\s+Not removed: a run resumes from it \(on node-a\)$/);
    await page.getByTestId("checkpoints").scrollIntoViewIfNeeded();
    await picture(page, "checkpoints");
    refuse("checkpoints/pin", 403, "this token is read-only: it cannot change runs");
    await page.getByLabel("Keep step 110").click();
    await page.getByRole("alert").getByText("this token is read-only: it cannot change runs").waitFor();
    refuse("checkpoints/pin", 200);
    await page.getByLabel("Keep step 110").click();
    await waitFor("both were sent", 15_000, () => posted.length === 2);
    assert.equal(posted.at(-1)[1].path, `${FOLDER}/step-110`);
  });

  await t.test("pruning shows what it would remove before it removes anything", async (t) => {
    const { page, posted } = await openRun(t, browser, lockstep, { tab: "checkpoints" });
    await page.getByTestId("prune").click();
    const preview = page.getByTestId("prune-preview");
    await preview.getByText("To remove: 1, which frees 512 MiB").waitFor();
    assert.match(await preview.innerText(), /step-110 – older than the last 1[\s\S]*step-120 – the last that is complete/);
    assert.deepEqual(posted, [["checkpoints/prune", { dry_run: true }]]);
    await page.getByLabel("Keep the last").fill("1");
    await page.getByLabel("Keep the last").press("Tab");
    await waitFor("the request was sent again", 15_000, () => posted.length === 2);
    assert.deepEqual(posted.at(-1), ["checkpoints/prune", { dry_run: true, keep_last: 1 }]);
    await page.getByRole("button", { name: "Remove 1" }).click();
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    assert.deepEqual(posted.at(-1), ["checkpoints/prune", { dry_run: false, keep_last: 1, removes: [`${FOLDER}/step-110`] }]);
  });

  await t.test("a prune whose list changes while the dialog is open removes nothing, and shows the new list", async (t) => {
    const { page } = await openRun(t, browser, lockstep, { tab: "checkpoints" });
    const path = (step) => `${FOLDER}/step-${step}`;
    const list = (...steps) => ({ removed: steps.map((step) => ({ path: path(step), reason: "older than the last 1", own_bytes: 2 ** 29 })), kept: [] });
    let now = list(110);
    const confirmed = [];
    // Like the collector, it removes only the list that a dry run shows now.
    await page.route(`**/api/runs/${RUN}/checkpoints/prune`, (route) => {
      const { dry_run, removes = [] } = route.request().postDataJSON();
      if (!dry_run) confirmed.push(removes);
      if (dry_run || removes.join() === now.removed.map(({ path }) => path).join()) return route.fulfill({ json: now });
      const problem = { type: "about:blank", title: "Conflict", status: 409, detail: "nothing was removed: check the new list", removes: now.removed };
      return route.fulfill({ status: 409, json: problem });
    });
    await page.getByTestId("prune").click();
    const preview = page.getByTestId("prune-preview");
    await preview.getByText("To remove: 1,").waitFor();
    now = list(110, 115);
    await page.getByTestId("confirm-prune").click();
    await page.getByRole("alert").getByText("nothing was removed").waitFor();
    await preview.getByText("To remove: 2,").waitFor();
    assert.match(await preview.innerText(), /step-110[\s\S]*step-115/);
    await picture(page, "prune-changed");
    await page.getByRole("button", { name: "Remove 2" }).click();
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    assert.deepEqual(confirmed, [[path(110)], [path(110), path(115)]]);
  });

  await t.test("a log is plain text, and a line found in any rank leads to its place", async (t) => {
    const { page } = await openRun(t, browser, lockstep, { tab: "log&rank=0" });
    const log = page.getByTestId("log");
    await log.getByText("step 127 loss 1.5").waitFor();
    assert.equal(await log.innerText(), "warming up\n100% done\nstep 127 loss 1.5 <b>bold</b>\n");
    await page.getByLabel("Search the logs of all ranks").fill("bad sample");
    await page.getByRole("button", { name: "Search" }).click();
    const match = page.getByTestId("log-matches").getByRole("button");
    assert.match(await match.innerText(), /attempt 1, rank 1 stderr \(node-a\): ValueError: bad sample/);
    await match.click();
    await log.getByText("piece from byte 4096").waitFor();
    await page.getByText("attempt 1, rank 1 stderr (node-a), from byte 4096").waitFor();
    await picture(page, "log-search");
    await page.getByTestId("log-follow").click();
    await log.getByText("the first attempt's end").waitFor();
    await page.getByTestId("log-attempt").selectOption({ label: "attempt 1" });
    assert.equal(await page.getByTestId("log-of").locator("option").nth(1).innerText(), "rank 0 stdout (node-a)");
    await page.getByLabel("wrap lines").uncheck();
    assert.equal(await log.evaluate((element) => getComputedStyle(element).whiteSpace), "pre");
  });

  await t.test("the lines of all ranks are one list: loaded on scroll, filtered, read from a time, and followed", async (t) => {
    const { page } = await openRun(t, browser, lockstep, { tab: "log" });
    const log = page.getByTestId("log");
    const numbers = async () => (await log.innerText()).match(/line \d+ of all/g)?.map((words) => Number(words.split(" ")[1])) ?? [];
    await log.getByText("line 999 of all").waitFor();
    assert.match(await log.innerText(), /\d\d:\d\d:\d\d node-a\/1 line 999 of all/);
    assert.equal((await numbers())[0], 700, "one page");
    const top = (text) => log.getByText(text, { exact: true }).evaluate((line) => line.getBoundingClientRect().top);
    await log.evaluate((element) => (element.scrollTop = 200));
    const before = await top("line 712 of all");
    await waitFor("the page before is loaded", SHOWN_MS, async () => (await numbers())[0] === 400);
    assert.ok(Math.abs((await top("line 712 of all")) - before) <= 1, "the visible lines stay in place");
    await page.getByTestId("log-level").selectOption({ label: "Errors" });
    await waitFor("only errors are left", SHOWN_MS, async () => (await numbers()).length === 10);
    assert.equal(new URL(page.url()).searchParams.get("level"), "error");
    assert.equal(await log.locator(".text-error").count(), 10);
    await page.reload();
    await waitFor("the filter is in the address", SHOWN_MS, async () => (await numbers()).length === 10);
    // The time of a line leads to all lines from there.
    await log.getByRole("link").nth(4).click();
    await waitFor("the list begins at the line", SHOWN_MS, async () => (await numbers()).includes(500));
    assert.equal(new URL(page.url()).searchParams.get("at"), String(BEGAN_MS + 499_000));
    await waitFor("the lines before it are loaded too", SHOWN_MS, async () => (await numbers()).includes(498));
    await page.getByTestId("log-follow").click();
    await log.getByText("line 999 of all").waitFor();
    assert.equal(new URL(page.url()).searchParams.get("at"), null);
    await page.getByLabel("Search the logs of all ranks").fill("line 42");
    await page.keyboard.press("Enter");
    await waitFor("only matching lines are left", SHOWN_MS, async () => (await numbers()).join() === "42,420,421,422,423,424,425,426,427,428,429");
    assert.deepEqual(await accessibilityFaults(page), []);
    await page.getByLabel("Search the logs of all ranks").fill("nowhere");
    await page.keyboard.press("Enter");
    await page.getByTestId("log-note").getByText("No line matches.").waitFor();
    await picture(page, "log-lines");
    await page.getByTestId("log-of").selectOption({ label: "rank 0 stdout (node-a)" });
    await log.getByText("step 127 loss 1.5").waitFor();
    await page.getByTestId("log-of").selectOption({ label: "All ranks" });
    await page.getByTestId("log-note").getByText("No line matches.").waitFor();
  });

  await t.test("the head shows step, throughput and owner, and the time left only at a steady pace", async (t) => {
    // The second attempt: 2 s per step since its start.
    const points = Array.from({ length: 15 }, (_, n) => n);
    const steps = { times_ms: points.map((n) => BEGAN_MS + 150_000 + n * 10_000), series: [{ labels: {}, values: points.map((n) => 57 + n * 5) }] };
    const now = { times_ms: [Date.now()], series: [{ labels: { is: "step" }, values: [127] }, { labels: { is: "rate" }, values: [12.5] }] };
    const ofAttempt = (query) => /train_info\{run="[^"]+",attempt="(\d+)"\}/.exec(query)?.[1];
    const frame = ({ op, query }) => {
      if (!query?.includes(RUN) || ofAttempt(query) !== "2") return undefined;
      if (op === "watch_range" && query.startsWith("max(train_step{")) return steps;
      return op === "watch_instant" && query.includes("train_samples_per_second") ? now : undefined;
    };
    const run = { total_steps: 1270, owner: "alice" };
    const { page, push } = await openRun(t, browser, lockstep, { run: view(run), frame });
    const progress = page.getByTestId("run-progress");
    await progress.getByText("about 38m left").waitFor();
    assert.match(await progress.innerText(), /step 127 of 1270 \(10\.0 %\)\s+12\.50 samples\/s per rank/);
    assert.match(await progress.getByText(/left/).getAttribute("title"), /^Steps left × time per step/);
    assert.match(await page.getByTestId("run-detail").innerText(), /attempt 2 · 4 ranks on node-a, node-b · owner alice · commit abc123\+changes · submitted/);
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "run-head");
    push(view({ ...run, state: "failed", state_since_ms: Date.now(), ended_ms: Date.now() }));
    await page.getByTestId("state-since").getByText(/just now|s ago/).waitFor();
    assert.match(await progress.innerText(), /step 127 of 1270/);
    assert.doesNotMatch(await progress.innerText(), /left|samples/, "an ended run has no time left and no throughput");
    push(view());
    await progress.getByText("step 127", { exact: true }).waitFor();
    assert.doesNotMatch(await progress.innerText(), /left/, "the total is not known");
    const next = { attempt: 3, cause: "restart after node_lost", started_ms: Date.now(), nodes: [] };
    push(view({ attempt: 3, attempts: [...view().run.attempts, next] }));
    await progress.waitFor({ state: "hidden" });
  });

  await t.test("a viewer cannot change anything", async (t) => {
    const { token } = await lockstep.call("POST", "/api/tokens", { role: "viewer" });
    const { page, push } = await openRun(t, browser, { ...lockstep, token }, { tab: "checkpoints" });
    await page.getByTestId("checkpoint").first().waitFor();
    for (const control of ["stop", "resume", "prune"]) assert.equal(await page.getByTestId(control).count(), 0, control);
    assert.equal(await page.getByLabel("Keep step 110").isDisabled(), true);
    push(ended());
    await page.locator("main").getByTestId("run-state").getByText("failed").waitFor();
    assert.equal(await page.getByTestId("resume").count(), 0);
  });

  await t.test("a watched run shows why it cannot be stopped or resumed", async (t) => {
    const { page } = await openRun(t, browser, lockstep, { run: view({ watched: true }), tab: "checkpoints" });
    await page.getByTestId("watched").getByText("cannot be stopped or resumed here").waitFor();
    await page.getByTestId("checkpoint").first().waitFor();
    for (const control of ["stop", "resume", "prune"]) assert.equal(await page.getByTestId(control).count(), 0, control);
  });

  await t.test("on a phone the page of a managed run is not cut off", async (t) => {
    const { page } = await openRun(t, browser, lockstep, { look: { width: 390, height: 844 } });
    for (const tab of ["Summary", "Ranks", "Memory and GPUs", "Log", "Checkpoints", "Attempts and settings"]) {
      await page.getByTestId("tabs").getByRole("button", { name: tab, exact: true }).click();
      if (tab === "Checkpoints") await page.getByTestId("checkpoint").first().waitFor();
      await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, tab);
    }
  });

  await t.test("the overview tells every state apart and counts the attempts", async (t) => {
    const states = ["queued", "preparing", "starting", "running", "stopping", "stopped", "restarting", "succeeded", "failed", "lost"];
    const message = "node-b was lost; attempt 3 begins in 30 s";
    const runs = states.map((state, n) => ({ ...view().run, id: `run-${n}`, state, attempt: n + 1, ...(n === 0 && { owner: "alice" }), ...(state === "restarting" && { outcome: { cause: "agent_lost", message } }) }));
    const page = await openPage(t, browser);
    await page.routeWebSocket("**/api/stream*", (socket) => {
      const server = socket.connectToServer();
      server.onMessage((message) => {
        const { type } = readPush(message);
        // Changes of the collector's list do not fit the list here.
        if (type !== "runs_changed") socket.send(type === "runs" ? JSON.stringify({ type, runs }) : message);
      });
    });
    await logIn(page, lockstep);
    const table = page.getByTestId("runs");
    await table.getByText("lost", { exact: true }).waitFor();
    // Ended runs are last.
    const ended = ["stopped", "succeeded", "failed"];
    const order = [...states.filter((state) => !ended.includes(state)), ...ended];
    assert.deepEqual(await table.getByTestId("run-state").allInnerTexts(), order);
    await table.getByText(message).waitFor();
    assert.deepEqual(await table.getByTestId("run-attempts").allInnerTexts(), order.map((state) => String(states.indexOf(state) + 1)));
    const owners = table.getByTestId("run-owner");
    assert.deepEqual(await owners.allInnerTexts(), ["alice", ...order.slice(1).map(() => "–")]);
    assert.deepEqual(await accessibilityFaults(page), []);
    await table.scrollIntoViewIfNeeded();
    await picture(page, "overview-states");
  });
});

/** Opens the mocked run's page; `frame` may answer a watch of values, `push` changes the run, `refuse` decides how a POST is answered, `posted` contains the requests. */
async function openRun(t, browser, lockstep, { run = view(), look = {}, tab = "summary", frame = () => undefined } = {}) {
  const page = await openPage(t, browser, { ...look, expected: /status of 4(03|09)/ });
  const posted = [];
  const answers = {};
  const streams = [];
  let now = run;
  await page.routeWebSocket("**/api/stream*", (socket) => {
    const server = socket.connectToServer();
    socket.onMessage((text) => {
      const request = JSON.parse(text);
      const given = frame(request);
      if (given) {
        socket.send(JSON.stringify({ type: "frame", id: request.id, reset: true, ...given }));
      } else if (request.op === "watch_run") {
        streams.push({ socket, id: request.id });
        socket.send(JSON.stringify({ type: "run", id: request.id, ...now }));
      } else if (request.op === "watch_log") {
        socket.send(JSON.stringify({ type: "log", id: request.id, piece: tail(request.source) }));
      } else if (request.op === "watch_range" && request.query.includes(RUN)) {
        socket.send(JSON.stringify({ type: "frame", id: request.id, ...measured() }));
      } else server.send(text);
    });
  });
  await page.route(`**/api/runs/${RUN}/**`, (route) => {
    const request = route.request();
    const path = new URL(request.url()).pathname.split(`/${RUN}/`)[1];
    if (request.method() !== "POST") return route.fulfill({ contentType: JSON_TYPE, body: JSON.stringify(read(path, new URL(request.url()).searchParams)) });
    posted.push([path, request.postDataJSON()]);
    const { status = 200, detail } = answers[path] ?? {};
    const problem = { type: "about:blank", title: "refused", status, detail };
    const answer = path === "checkpoints/prune" ? pruned() : now.run;
    return route.fulfill({ status, contentType: JSON_TYPE, body: JSON.stringify(status === 200 ? answer : problem) });
  });
  await openAt(page, lockstep, `/runs/${RUN}?tab=${tab}`);
  await page.getByRole("heading", { name: RUN }).waitFor();
  const push = (changed) => {
    now = changed;
    for (const { socket, id } of streams) socket.send(JSON.stringify({ type: "run", id, ...now }));
  };
  return { page, posted, push, refuse: (path, status, detail) => (answers[path] = { status, detail }) };
}

/** A run in its second attempt, as the stream sends it. */
function view(changes = {}) {
  const command = (rank) => `torchrun --nnodes 2 --node-rank ${rank} --nproc-per-node 2 --master-addr 10.0.0.1 /srv/train.py`;
  const node = (name, at, ranks) => ({ node: name, node_rank: at, command: command(at), ranks });
  const rank = (number, more = {}) => ({ rank: number, local_rank: number % 2, pid: 4000 + number, step: 127, ...more });
  const signalled = { rank: 0, signal: 15, out_of_memory: false, traceback: "of a rank that only fell with it", at_ns: 2 };
  const traceback = 'Traceback (most recent call last):\n  File "/srv/train.py", line 7, in <module>\nValueError: bad sample';
  const raised = { rank: 1, code: 1, out_of_memory: false, error_type: "ValueError", message: "bad sample", traceback, last_step: 124, at_ns: 1 };
  const message = "rank 1 on node-a raised ValueError: bad sample";
  const stall = { since_ms: BEGAN_MS + 200_000, step: 127, cause: "stopped" };
  const first = {
    attempt: 1,
    cause: "submitted",
    started_ms: BEGAN_MS,
    ended_ms: BEGAN_MS + 120_000,
    outcome: { cause: "exception", node: "node-a", rank: 1, message },
    last_step: 124,
    last_good_step: 110,
    nodes: [node("node-a", 0, [rank(0, { exit: signalled, cascade: true }), rank(1, { exit: raised })])],
  };
  const second = {
    attempt: 2,
    cause: "restart after exception",
    started_ms: BEGAN_MS + 150_000,
    resumed_from: { path: `${FOLDER}/step-120`, step: 120 },
    last_step: 127,
    excluded: [{ node: "node-c", reason: "its GPU 3 fell off the bus" }],
    warnings: ["node-b has driver 575.51, node-a 570.86"],
    knobs: { num_workers: "4", amp: "bf16" },
    provenance: { commit: "abc123+changes", seed: "42", packages: ["numpy==2.3.0", "torch==2.9.0"], env: { EPOCHS: "3" } },
    nodes: [node("node-a", 0, [rank(0), rank(1)]), node("node-b", 1, [rank(2), rank(3, { stall })])],
  };
  const summary = { id: RUN, name: "mocked", program: "/srv/train.py", state: "running", attempt: 2, nodes: ["node-a", "node-b"], world_size: 4, submitted_ms: BEGAN_MS - 5_000, started_ms: BEGAN_MS };
  return { run: { ...summary, spec: { name: "mocked", script: "/srv/train.py" }, attempts: [first, second], ...changes } };
}

const ended = () => view({ state: "failed", ended_ms: Date.now(), outcome: { cause: "exception", message: "it crashed at step 127 twice" } });

/** The responses to GET requests of the run. */
function read(path, asked) {
  const source = { attempt: 1, node: "node-a", rank: 1, stream: "stderr" };
  if (path === "logs/search") return { matches: [{ source, offset: 4096, line: `ValueError: ${asked.get("q")}` }], truncated: false };
  if (path === "logs/lines") return lines(asked);
  if (path === "logs") {
    const offset = Number(asked.get("offset"));
    return { source, offset, next_offset: offset + 20, length: 9000, text: `piece from byte ${offset}` };
  }
  const GIB = 2 ** 30;
  const one = (step, more) => ({ path: `${FOLDER}/step-${step}`, step, format: "dcp", content: "full", complete: true, bytes: 1.5 * GIB, own_bytes: 1.5 * GIB, finished_ms: BEGAN_MS, nodes: ["node-a"], age_steps: Math.max(127 - step, 0), ...more });
  const checkpoints = [
    one(130, { complete: false, problem: "shard 2 of 4 is missing" }),
    one(120, { own_bytes: GIB / 2, duration_ms: 2_500, in_use: true }),
    one(110, { content: "model", best: true, not_removed: "a run resumes from it (on node-a)" }),
  ];
  const line = (step, reason) => ({ path: `${FOLDER}/step-${step}`, reason, own_bytes: 0 });
  const retention = {
    removed: [line(110, "older than the last 1")],
    kept: [line(120, "the last complete one"), line(130, "not proven to be this run's: notes.txt")],
  };
  return { folder: FOLDER, free_bytes: 12 * GIB, problem: "node-b does not see the folder", checkpoints, retention };
}

/** A page of a list of 1,000 lines, one per second; each hundredth is an error. Cursors are the numbers of lines. */
function lines(asked) {
  const [limit, words] = [Number(asked.get("limit")), asked.get("q") ?? ""];
  const text = (n) => `line ${n} of all`;
  const all = Array.from({ length: 1_000 }, (_, n) => n).filter((n) => (!asked.has("level") || n % 100 === 99) && text(n).includes(words));
  const at = asked.has("at_ms") ? (Number(asked.get("at_ms")) - BEGAN_MS) / 1_000 : Number(asked.get("after"));
  const isForward = asked.has("at_ms") || asked.has("after");
  const end = Number(asked.get("before") ?? 1_000);
  const shown = isForward ? all.filter((n) => n >= at).slice(0, limit) : all.filter((n) => n < end).slice(-limit);
  const [first, after] = [shown[0] ?? (isForward ? at : end), shown.length > 0 ? shown.at(-1) + 1 : isForward ? at : end];
  const line = (n) => ({
    source: { attempt: 2, node: "node-a", rank: n % 2, stream: "stdout" },
    time_ms: BEGAN_MS + n * 1_000,
    offset: n * 20,
    ...(n % 100 === 99 && { level: "error" }),
    text: text(n),
  });
  return {
    attempt: 2,
    lines: shown.map(line),
    ...(all.some((n) => n < first) && { earlier: String(first) }),
    later: String(after),
    at_end: !all.some((n) => n >= after),
    searched_from_ms: BEGAN_MS + first * 1_000,
    searched_to_ms: BEGAN_MS + after * 1_000,
    untimed_logs: 0,
  };
}

function pruned() {
  const line = (step, reason) => ({ path: `${FOLDER}/step-${step}`, reason, own_bytes: 2 ** 29 });
  return { removed: [line(110, "older than the last 1")], kept: [line(120, "the last that is complete")] };
}

/** A rank's values: on one node in the first attempt, on another in the second; the old node still sends values for a short time. */
function measured() {
  const times_ms = Array.from({ length: 300 }, (_, n) => BEGAN_MS + n * 1_000);
  const line = (node, value) => ({ labels: { run: RUN, rank: "0", node }, values: times_ms.map((_, n) => value(n)) });
  const first = line("node-a", (n) => (n < 180 ? 2 - n / 200 : null));
  const second = line("node-b", (n) => (n > 155 ? 1.9 - n / 200 : null));
  return { reset: true, times_ms, series: [first, second] };
}

/** The end of a log, with terminal escape sequences. */
function tail(source) {
  const live = "\u001b[32mwarming up\u001b[0m\n  5% done\r 50% done\r100% done\r\nstep 127 loss 1.5 <b>bold</b>\u001b]0;title\u0007\n";
  const text = source.attempt === 1 ? "the first attempt's end\n" : live;
  return { source, offset: 0, next_offset: text.length, length: text.length, text };
}
