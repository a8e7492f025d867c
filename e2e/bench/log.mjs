// A long log: the times to open it, to find a word and to jump, its lines in the document, and the main thread while it scrolls.

import { setTimeout as pause } from "node:timers/promises";

import { startBrowser } from "../harness.mjs";
import { livePage, measure, progress, traced, within } from "./page.mjs";

/** An action that takes longer has failed. */
const ACTION_MS = 60_000;
/** One notch of a wheel, and how often it turns: 20 times per second, five seconds in each direction. */
const NOTCH_PX = 400;
const NOTCHES = 100;
const NOTCH_MS = 50;
const LOG = "[data-testid=log]";

await measure(async (scope, { run, last, word, trace, ...lockstep }) => {
  const browser = await startBrowser(scope);
  const page = await livePage(scope, browser, lockstep, `/runs/${run}?rank=0`);
  await page.getByTestId("tabs").waitFor();
  let shown = 0;
  const act = async (name, what) => {
    const ms = await within(ACTION_MS, name, page.evaluate(actUntil, what));
    shown = Math.max(shown, (await lines(page)).count);
    progress(`${name}: ${ms.toFixed(0)} ms`);
    return ms;
  };

  const openMs = await act("open", { press: "[data-testid=tabs] button", named: "Log", inside: LOG, text: last });
  const box = await page.locator(LOG).boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  let reached = await lines(page);
  await traced(browser, trace, async () => {
    await turn(page, -NOTCH_PX);
    reached = await lines(page);
    await turn(page, NOTCH_PX);
  });
  shown = Math.max(shown, reached.count);

  await page.getByLabel("Search the logs of all ranks").fill(word);
  const findMs = await act("find", { press: "form[role=search] button[type=submit]", inside: "[data-testid=log-matches]", text: word });
  const showMs = await act("show", { press: "[data-testid=log-matches] button", inside: LOG, text: word });
  const endMs = await act("jump to the end", { press: "[data-testid=log-follow]", inside: LOG, text: last });
  return {
    open_ms: openMs,
    find_ms: findMs,
    show_ms: showMs,
    end_ms: endMs,
    lines_shown: shown,
    lines_reached: Number(/\d+/.exec(last)[0]) - reached.first + 1,
    bytes: await length(lockstep, run),
  };
});

async function turn(page, pixels) {
  for (let notch = 0; notch < NOTCHES; notch += 1) {
    await page.mouse.wheel(0, pixels);
    await pause(NOTCH_MS);
  }
}

/** Returns how many lines of the log are in the document (or elements, if there are more), and the number of the first line. */
function lines(page) {
  return page.locator(LOG).evaluate((log) => ({
    count: Math.max(log.textContent.split("\n").length, log.querySelectorAll("*").length),
    first: Number(/line (\d+) /.exec(log.textContent)?.[1]),
  }));
}

async function length({ url, token }, run) {
  const response = await fetch(`${url}/api/runs/${run}/logs?rank=0&limit=1`, {
    headers: { authorization: `Bearer ${token}` },
    signal: AbortSignal.timeout(ACTION_MS),
  });
  return (await response.json()).length;
}

/**
 * Runs in the page. Presses the first button that matches and has `named` in it. Returns the milliseconds until the frame in which the
 * element `inside` shows `text` was drawn.
 */
function actUntil({ press, named = "", inside, text }) {
  return new Promise((resolve) => {
    const button = [...document.querySelectorAll(press)].find(({ textContent }) => textContent.includes(named));
    const begun = performance.now();
    const look = () => {
      if (!document.querySelector(inside)?.textContent.includes(text)) return;
      observer.disconnect();
      globalThis.afterFrame(() => resolve(performance.now() - begun));
    };
    const observer = new MutationObserver(look);
    observer.observe(document.body, { subtree: true, childList: true, characterData: true });
    button.click();
  });
}
