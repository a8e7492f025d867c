// Shared code of the benchmarks of the dashboard. `cargo xtask bench web` runs each script with its settings as JSON on the command line,
// the token in LOCKSTEP_TOKEN, and reads the outcome from the last line.

import { once } from "node:events";
import { createWriteStream } from "node:fs";

import { openPage } from "../harness.mjs";

// The dashboard in the binary is measured, whatever the tests use.
delete process.env.LOCKSTEP_TEST_DIST;

/** How long a log-in may take. */
const LOG_IN_MS = 15_000;
/** Tasks and frames of the main thread. */
const CATEGORIES = [
  "-*",
  "devtools.timeline",
  "disabled-by-default-devtools.timeline",
  "disabled-by-default-devtools.timeline.frame",
  "disabled-by-default-lighthouse",
];

/** Runs `body` with a scope, in which `after(close)` registers what has to be closed; the newest is closed first. */
export async function scoped(body) {
  const opened = [];
  const closeAll = async () => {
    for (const close of opened) await close();
  };
  let value;
  try {
    value = await body({ after: (close) => opened.unshift(close) });
  } catch (error) {
    await closeAll().catch(({ message }) => progress(message));
    throw error;
  }
  await closeAll();
  return value;
}

/** Runs a measurement with a scope and the settings, and prints its outcome. */
export async function measure(body) {
  const settings = { ...JSON.parse(process.argv[2]), token: process.env.LOCKSTEP_TOKEN };
  const outcome = await scoped((scope) => body(scope, settings));
  process.stdout.write(`${JSON.stringify(outcome)}\n`);
}

/** Prints a line for people. */
export function progress(text) {
  process.stdout.write(`${text}\n`);
}

/** Returns the value of a promise. Fails if it takes too long. */
export async function within(ms, what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${ms / 1000} s: ${what}`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Opens an empty page that is logged in by its cookie, with an empty cache. The options are those of `openPage`. */
export async function emptyPage(scope, browser, lockstep, options) {
  const page = await openPage(scope, browser, options);
  await page.context().addCookies([{ ...(await sessionCookie(lockstep)), url: lockstep.url }]);
  await page.addInitScript(defineAfterFrame);
  return page;
}

/** Opens a page of the dashboard and waits until it is live. */
export async function livePage(scope, browser, lockstep, path, size = { width: 1440, height: 900 }) {
  const page = await emptyPage(scope, browser, lockstep, size);
  await page.goto(lockstep.url + path);
  await page.getByTestId("connection").getByText("live").waitFor();
  return page;
}

/** Records a trace of the whole browser while `body` runs: one event per line of `file`. A trace that lacks events is an error. */
export async function traced(browser, file, body) {
  const session = await browser.newBrowserCDPSession();
  const out = createWriteStream(file);
  session.on("Tracing.dataCollected", ({ value }) => value.forEach((event) => out.write(`${JSON.stringify(event)}\n`)));
  const complete = new Promise((resolve) => session.once("Tracing.tracingComplete", resolve));
  await session.send("Tracing.start", { transferMode: "ReportEvents", categories: CATEGORIES.join(",") });
  let value;
  let isIncomplete;
  try {
    value = await body();
  } finally {
    await session.send("Tracing.end");
    ({ dataLossOccurred: isIncomplete } = await complete);
    out.end();
    await once(out, "finish");
    await session.detach();
  }
  if (isIncomplete) throw new Error(`the browser lost events of the trace ${file}; measure for a shorter time`);
  return value;
}

async function sessionCookie({ url, token }) {
  const response = await fetch(`${url}/api/session`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token }),
    signal: AbortSignal.timeout(LOG_IN_MS),
  });
  if (!response.ok) throw new Error(`POST /api/session: ${response.status} ${await response.text()}`);
  const [, name, value] = /^([^=]+)=([^;]*)/.exec(response.headers.getSetCookie()[0]);
  return { name, value };
}

/** Runs in the page. `afterFrame(then)` calls back after the next frame: in the first task that follows it. */
function defineAfterFrame() {
  globalThis.afterFrame = (then) =>
    requestAnimationFrame(() => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = then;
      port2.postMessage(null);
    });
}
