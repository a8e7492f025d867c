// A trace of a page that changes each second, and whether its pixels changed.

import { setTimeout as pause } from "node:timers/promises";

import { SHOWN_MS, startBrowser, waitFor } from "../harness.mjs";
import { livePage, measure, progress, traced } from "./page.mjs";

/** Until the first values are drawn and the start of the page is over. */
const SETTLE_MS = 10_000;
/** The lists of a thousand nodes are megabytes. */
const GRID_MS = 60_000;
/** The whole page is in the window, so that everything that changes is drawn. */
const SIZE = { width: 1440, height: 2400 };
const CHART = "[data-testid=chart]";

/** Waits until the subject is drawn. Returns the selector of its canvas. */
const SUBJECTS = {
  grid: async (page, gpus) => {
    const heading = page.locator("section[aria-label=GPUs] h2");
    await waitFor(`the grid has ${gpus} GPUs`, GRID_MS, async () => Number(/\d+/.exec(await heading.innerText())?.[0]) === gpus);
    return "[data-testid=gpu-grid] canvas";
  },
  charts: async (page) => {
    const throughput = page.locator(`${CHART}[data-title=Throughput]`);
    await waitFor("the charts have points", SHOWN_MS, async () => Number(await throughput.getAttribute("data-points")) > 0);
    return `${CHART}[data-title=Throughput] canvas`;
  },
};

await measure(async (scope, { subject, gpus, path, seconds, trace, ...lockstep }) => {
  const browser = await startBrowser(scope);
  const page = await livePage(scope, browser, lockstep, path, SIZE);
  const canvas = await SUBJECTS[subject](page, gpus);
  await page.locator(canvas).first().waitFor();
  await pause(SETTLE_MS);
  await page.evaluate(compareEachSecond, canvas);
  progress(`tracing for ${seconds} s`);
  await traced(browser, trace, () => pause(seconds * 1_000));
  const strips = await page.evaluate(() => globalThis.strips);
  progress(`the pixels changed in ${strips.changed} of ${strips.compared} seconds`);
  return strips;
});

/** Runs in the page. Compares two strips of a canvas each second: reading all of it would be work of its own. */
function compareEachSecond(selector) {
  globalThis.strips = { compared: 0, changed: 0 };
  const canvas = document.querySelector(selector);
  const hash = (...area) => canvas.getContext("2d").getImageData(...area).data.reduce((sum, byte) => (sum * 31 + byte) | 0, 7);
  let before;
  setInterval(() => {
    const { width, height } = canvas;
    const now = `${hash(0, Math.floor(height / 2), width, 1)} ${hash(Math.floor(width * 0.9), 0, 1, height)}`;
    if (before !== undefined) {
      globalThis.strips.compared += 1;
      globalThis.strips.changed += now === before ? 0 : 1;
    }
    before = now;
  }, 1_000);
}
