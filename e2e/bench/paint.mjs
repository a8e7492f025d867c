// The time from the start of a navigation until the overview shows its sentence and the first rows of the table of runs.

import { startBrowser } from "../harness.mjs";
import { emptyPage, measure, progress, scoped, within } from "./page.mjs";

/** A load that takes longer has failed. */
const LOAD_MS = 60_000;
/** High enough for the diagnoses above the table and for the rows. */
const SIZE = { width: 1280, height: 1600 };
/** Chromium asks for an icon of the page that is not of the dashboard. */
const EXPECTED = /status of 404/;

await measure(async (scope, { loads, rows, slowdown, ...lockstep }) => {
  const browser = await startBrowser(scope);
  const visible = [];
  const paces = [];
  while (visible.length < loads) {
    const { ms, pace } = await scoped((inner) => load(inner, browser, lockstep, { rows, slowdown }));
    visible.push(ms);
    paces.push(pace);
    progress(`load ${visible.length} of ${loads}: ${ms.toFixed(0)} ms`);
  }
  paces.sort((a, b) => a - b);
  return { visible_ms: visible, slowdown: paces[Math.floor(paces.length / 2)] };
});

/** Each load has a context of its own, and so an empty cache. */
async function load(scope, browser, lockstep, { rows, slowdown }) {
  const page = await emptyPage(scope, browser, lockstep, { ...SIZE, expected: EXPECTED });
  // This page loads no file of the dashboard, so the cache stays empty. The next one is of the same site and keeps the process with its throttle.
  await page.goto(`${lockstep.url}/-/healthy`);
  const plain = await page.evaluate(loopMs);
  const session = await page.context().newCDPSession(page);
  await session.send("Emulation.setCPUThrottlingRate", { rate: slowdown });
  await page.addInitScript(watch, rows);
  await page.goto(lockstep.url, { waitUntil: "commit" });
  const { ms, bottom } = await within(LOAD_MS, "sentence and rows are visible", page.evaluate(() => globalThis.whenVisible));
  if (bottom > SIZE.height) throw new Error(`row ${rows} ends at ${bottom} px, below the window of ${SIZE.height} px`);
  return { ms, pace: (await page.evaluate(loopMs)) / plain };
}

/** Runs in the page. Returns the milliseconds of a loop: the best of five, because the page has other work too. */
function loopMs() {
  let best = Infinity;
  for (let attempt = 0; attempt < 5; attempt += 1) {
    const begun = performance.now();
    let sum = 0;
    for (let at = 0; at < 5_000_000; at += 1) sum = (sum * 31 + at) | 0;
    globalThis.loopSum = sum;
    best = Math.min(best, performance.now() - begun);
  }
  return best;
}

/** Runs in the page before its own scripts. */
function watch(rows) {
  globalThis.whenVisible = new Promise((resolve) => {
    const look = () => {
      const sentence = document.querySelector("[data-testid=sentence]");
      const shown = document.querySelectorAll("[data-testid=runs] tbody tr");
      if (!sentence || sentence.textContent.includes("Loading") || shown.length < rows) return;
      observer.disconnect();
      globalThis.afterFrame(() => resolve({ ms: performance.now(), bottom: shown[rows - 1].getBoundingClientRect().bottom }));
    };
    const observer = new MutationObserver(look);
    observer.observe(document, { subtree: true, childList: true, characterData: true });
  });
}
