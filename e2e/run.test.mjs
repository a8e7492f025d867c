// A run from the form to the end, which trains during a crash of the collector.

import assert from "node:assert/strict";
import test from "node:test";

import {
  NOBODY_ANSWERS,
  SHOWN_MS,
  accessibilityFaults,
  killAndRestart,
  logIn,
  openAt,
  openPage,
  picture,
  scrollToDrawn,
  startBrowser,
  startLockstep,
  waitFor,
} from "./harness.mjs";
import { LOSS, RANKS, TRAINING_MS, points, runOf, state, stop, submit } from "./training.mjs";

const CHARTS = ["Step time", "Throughput", "Loss", "Gradient norm", "Waiting for gradient sync", "Compute share"];

test("runs", async (t) => {
  const lockstep = await startLockstep(t);
  const browser = await startBrowser(t);
  const page = await openPage(t, browser, { expected: NOBODY_ANSWERS });
  await logIn(page, lockstep);

  await t.test("the form starts a run whose charts move, one line per rank", async () => {
    // A small model, because another test may run beside this one: a step waits most of the time.
    await submit(page, "steps=100000\nstep-delay-ms=50\nlog-every=5\nlayers=1\nwidth=64\nbatch-size=8");
    await points(page, 3, TRAINING_MS);
    await waitFor("the run is running", SHOWN_MS, async () => (await state(page)) === "running");
    await page.getByTestId("state-since").getByText(/ago|just now/).waitFor();
    await page.getByTestId("run-progress").getByText(/^step \d+ of 100000 \(/).waitFor();
    const before = await points(page, 3);
    // Charts are drawn one per frame, some time after their points have arrived.
    const pixels = await waitFor("lines are drawn", SHOWN_MS, () => coloured(page));
    await points(page, before + 3);
    await waitFor("the picture changes", SHOWN_MS, async () => ![0, pixels].includes(await coloured(page)));
    const names = async () => (await page.locator(LOSS).getByTestId("chart-legend").locator("tbody th").allInnerTexts()).map((name) => name.trim());
    await waitFor("there is one line per rank", SHOWN_MS, async () => (await names()).join() === "rank 0,rank 1");
  });

  await t.test("every chart of the run has data", async () => {
    for (const title of CHARTS) {
      const chart = page.locator(`[data-testid=chart][data-title="${title}"]`);
      await waitFor(`${title} has points`, 15_000, async () => Number(await chart.getAttribute("data-points")) > 0);
    }
  });

  await t.test("memory of the ranks is measured, and what is not says why", async () => {
    await tab(page, "Memory and GPUs");
    const host = page.locator('[data-testid=chart][data-title="Host memory"]');
    await waitFor("host memory has points", 15_000, async () => Number(await host.getAttribute("data-points")) > 0);
    const allocated = page.locator('[data-testid=chart][data-title="Allocated"]');
    await allocated.getByText("No rank of this run uses CUDA memory.").waitFor();
    assert.ok((await allocated.boundingBox()).height < 100, "a chart without data is one line");
  });

  await t.test("the table below a chart shows each line alone, and keys move the cursor", async () => {
    await tab(page, "Summary");
    await points(page, 3);
    const loss = page.locator(LOSS);
    const legend = loss.getByTestId("chart-legend");
    const rank = legend.getByRole("button", { name: "rank 1" });
    const before = await coloured(page);
    await rank.click();
    assert.equal(await rank.getAttribute("aria-pressed"), "true");
    await waitFor("one line is left", 15_000, async () => (await coloured(page)) !== before);
    await rank.click();
    const plot = loss.getByRole("group", { name: /Arrow keys move the cursor/ });
    await legend.getByRole("button", { name: "Last", exact: true }).waitFor();
    await plot.focus();
    await plot.press("ArrowLeft");
    await loss.locator(".u-cursor-x:not(.u-off)").waitFor({ state: "attached" });
    await legend.getByRole("button", { name: "Value", exact: true }).waitFor();
  });

  await t.test("the log of rank 0 shows its steps as they arrive", async () => {
    await tab(page, "Log");
    const log = page.getByTestId("log");
    await log.getByText(/^step \d+ loss/).first().waitFor();
    assert.match(await log.innerText(), /\d\d:\d\d:\d\d \S+\/0 step \d+ loss/, "the list of all ranks");
    await page.getByTestId("log-of").selectOption({ index: 1 });
    await log.getByText(/step \d+ loss/).waitFor();
    const last = async () => Number(/step (\d+) loss[^\n]*\s*$/.exec(await log.innerText())?.[1]);
    const before = await waitFor("a step is logged", 15_000, last);
    await waitFor("another step is logged", 15_000, async () => (await last()) > before);
    // Enough lines that the start of the log is far from its end.
    await waitFor("the log is longer than its box", TRAINING_MS, () => log.evaluate((element) => element.scrollHeight > element.clientHeight + 100));
    await log.evaluate((element) => (element.scrollTop = 0));
    await page.getByTestId("new-lines").waitFor();
    assert.match(await page.getByTestId("new-lines").innerText(), /^\d+ new lines? ↓$/);
    await page.getByTestId("new-lines").click();
    await page.getByTestId("new-lines").waitFor({ state: "detached" });
    await tab(page, "Attempts and settings");
    await page.locator("[data-testid=ranks] tbody tr").nth(RANKS - 1).waitFor();
    assert.equal(await page.locator("[data-testid=ranks] tbody tr").count(), RANKS);
    await tab(page, "Summary");
  });

  await t.test("a zoomed period is in the address until it is left", async () => {
    const plot = page.locator(`${LOSS} .u-over`);
    const connection = page.getByTestId("connection");
    await scrollToDrawn(page.locator(LOSS));
    // Relative to the plot, because the charts above it move it when they are drawn.
    const { width } = await plot.boundingBox();
    await plot.hover({ position: { x: width * 0.2, y: 50 } });
    await page.mouse.down();
    for (const share of [0.3, 0.4, 0.5]) await plot.hover({ position: { x: width * share, y: 50 } });
    await page.mouse.up();
    await page.waitForURL(/[?&]from=\d+&to=\d+/);
    await connection.getByText("past").waitFor();
    const zoomed = page.url();
    await page.reload();
    await points(page, 1);
    await connection.getByText("past").waitFor();
    assert.equal(page.url(), zoomed);
    assert.deepEqual(await accessibilityFaults(page), []);
    await scrollToDrawn(page.locator(LOSS));
    await plot.dblclick();
    await connection.getByText("live").waitFor();
    assert.doesNotMatch(page.url(), /from=/);
    await page.goto(zoomed);
    await page.getByTestId("unzoom").click();
    await connection.getByText("live").waitFor();
    await page.getByTestId("span").selectOption({ label: "1 hour" });
    assert.match(page.url(), /span=1h/);
    await page.reload();
    await waitFor("the choice is kept", 15_000, async () => (await page.getByTestId("span").inputValue()) === "1h");
    await page.getByTestId("span").selectOption({ label: "10 minutes" });
    assert.doesNotMatch(page.url(), /span=/);
  });

  await t.test("a restart of the collector is shown, and the charts continue", async () => {
    await tab(page, "Log");
    await page.getByTestId("log-of").selectOption({ index: 1 });
    await page.getByLabel("Search the logs of all ranks").and(page.locator("[name=q]")).waitFor();
    const log = page.getByTestId("log");
    await log.evaluate((element) => (element.dataset.marked = "yes"));
    const run = runOf(page);
    await killAndRestart(lockstep, () => page.getByTestId("connection").getByText("offline").waitFor());
    await page.getByTestId("connection").getByText("live").waitFor();
    const last = async () => Number(/step (\d+) loss[^\n]*\s*$/.exec(await log.innerText())?.[1]);
    const step = await waitFor("the log is there", 15_000, last);
    await waitFor("the log continues", 30_000, async () => (await last()) > step);
    assert.equal(await state(page), "running");
    assert.equal(runOf(page), run);
    assert.equal(await log.getAttribute("data-marked"), "yes", "the page was not rebuilt");
    const lines = (await log.innerText()).match(/^step \d+/gm);
    assert.deepEqual(lines, [...new Set(lines)], "no line of the log shows twice");
    await tab(page, "Summary");
    const before = await points(page, 1);
    await points(page, before + 3, 30_000);
  });

  await t.test("on a phone the run's page is not cut off", async (t) => {
    const phone = await openPage(t, browser, { width: 390, height: 844 });
    await logIn(phone, lockstep);
    await phone.getByTestId("gpu-grid").locator("canvas").first().waitFor();
    await phone.getByTestId("indicator").first().getByText("worst").waitFor();
    await phone.getByTestId("simulated").waitFor();
    await picture(phone, "overview-phone");
    await phone.goto(page.url());
    await scrollToDrawn(phone.locator(LOSS));
    assert.equal(await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
  });

  await t.test("in dark mode the charts are readable too", async (t) => {
    const dark = await openPage(t, browser, { dark: true });
    await openAt(dark, lockstep, page.url().slice(lockstep.url.length));
    await points(dark, 3);
    await picture(dark, "run-dark");
    assert.deepEqual(await accessibilityFaults(dark), []);
  });

  await t.test("pictures of the run and the overview", async (t) => {
    await page.mouse.move(0, 0);
    await page.evaluate(() => scrollTo(0, 0));
    await picture(page, "run");
    const overview = await openPage(t, browser);
    await logIn(overview, lockstep);
    await overview.locator("[data-testid=runs] tbody a").first().waitFor();
    assert.deepEqual(await accessibilityFaults(overview), []);
    await picture(overview, "overview");
  });

  await t.test("Stop asks for confirmation, and the run ends as stopped", async () => {
    await page.getByTestId("stop").click();
    await page.getByRole("button", { name: "Cancel" }).click();
    assert.equal(await state(page), "running");
    await stop(page);
    await page.getByTestId("run-outcome").waitFor();
  });

  await t.test("an ended run shows its whole history", async () => {
    await page.reload();
    await points(page, 10);
    await page.getByTestId("span").selectOption({ label: "whole run" });
    await points(page, 10);
  });
});

const tab = (page, name) => page.getByTestId("tabs").getByRole("button", { name, exact: true }).click();

/** Returns a hash of the coloured pixels of the chart of the loss; 0 if there are none. */
async function coloured(page) {
  await scrollToDrawn(page.locator(LOSS));
  return page.locator(`${LOSS} canvas`).evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let sum = 0;
    for (let at = 0; at < data.length; at += 4) {
      const [red, green, blue, alpha] = data.slice(at, at + 4);
      if (alpha > 100 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) sum = (sum * 31 + at) % 1_000_000_007;
    }
    return sum;
  });
}
