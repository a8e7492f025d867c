// What the browser tests share: a Lockstep of their own, a Chromium, and waiting for conditions with a deadline.
//
// Everything that is started is stopped by the test that started it, listens on loopback, and keeps its data in a folder of its own.

import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdir, mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

// The packages lie outside the checkout, where modules are not looked up by themselves.
const require = createRequire(join(needed("LOCKSTEP_TEST_NODE_MODULES"), "here.js"));

/** A collector on two loaded cores needs a second or two; a minute means it will not come. */
const START_MS = 60_000;
/** An orderly end stops the agent as well. */
const STOP_MS = 20_000;
/** How long a page may take to show what a test waits for, unless the test says otherwise. */
export const SHOWN_MS = 15_000;

/**
 * Starts `lockstep up` on a free port with simulated GPUs and stops it when the test ends.
 * Gives `{ url, token, data, call, process }`, where `call(method, path, body)` speaks to the API as admin.
 */
export async function startLockstep(test, { simulate = "h100x8:healthy", args = [], data } = {}) {
  const folder = data ?? (await mkdtemp(join(tmpdir(), "lockstep-e2e-")));
  const token = randomBytes(24).toString("hex");
  const child = spawn(
    needed("LOCKSTEP_TEST_BINARY"),
    ["up", "--listen", "127.0.0.1:0", "--data", folder, "--simulate", simulate, ...args],
    { env: environment(token), stdio: ["ignore", "pipe", "pipe"] },
  );
  const printed = collect(child);
  test.after(async () => {
    await stop(child);
    if (!data) await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  });
  const url = await waitFor("lockstep up prints its address", START_MS, () => {
    if (child.exitCode !== null) throw new Error(`lockstep up ended with ${child.exitCode}:\n${printed.text}`);
    return /Lockstep is at (http\S+)/.exec(printed.text)?.[1];
  });
  await waitFor("the collector is ready", START_MS, async () => (await fetch(`${url}/-/ready`)).ok);
  return { url, token, data: folder, process: child, printed, call: (...request) => call(url, token, ...request) };
}

/** Starts Chromium and closes it when the test ends. Nothing in it may reach beyond loopback, nor phone home. */
export async function startBrowser(test) {
  const { chromium } = require("playwright-core");
  const browser = await chromium.launch({
    executablePath: needed("LOCKSTEP_TEST_CHROMIUM"),
    headless: true,
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-dev-shm-usage",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
      "--no-first-run",
      "--no-proxy-server",
    ],
  });
  test.after(() => browser.close());
  return browser;
}

/** A page whose errors fail the test at its end: an exception, a failed request for a file, a refused script. */
export async function openPage(test, browser, { dark = false, width = 1440, height = 900 } = {}) {
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme: dark ? "dark" : "light",
    reducedMotion: "reduce",
  });
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(`exception: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" && !isExpected(message.text())) errors.push(`console: ${message.text()}`);
  });
  test.after(async () => {
    await context.close();
    if (errors.length > 0) throw new Error(`the page complained:\n${errors.join("\n")}`);
  });
  page.setDefaultTimeout(SHOWN_MS);
  return page;
}

/** Asks again until `condition` gives something true, and gives that; fails at the deadline, with the last error if there was one. */
export async function waitFor(what, withinMs, condition) {
  const deadline = Date.now() + withinMs;
  let last;
  do {
    try {
      const value = await condition();
      if (value) return value;
    } catch (error) {
      // A refused connection or a missing element is what waiting is for; an ended program is not.
      if (/ended with/.test(error.message)) throw error;
      last = error;
    }
    await pause(100);
  } while (Date.now() < deadline);
  throw new Error(`not within ${withinMs / 1000} s: ${what}${last ? ` (${last.message})` : ""}`);
}

/** Keeps a picture: in docs/images when LOCKSTEP_TEST_IMAGES names it, else in a temporary folder. */
export async function picture(page, name) {
  const folder = process.env.LOCKSTEP_TEST_IMAGES ?? join(tmpdir(), "lockstep-e2e-images");
  await mkdir(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`), animations: "disabled" });
}

/** What the accessibility rules find wrong with the page, one line each; only what keeps people out. */
export async function accessibilityFaults(page) {
  const source = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");
  // Not a script tag: the page's content policy rightly refuses one.
  await page.evaluate(source);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return grave.map(({ id, help, nodes }) => `${id}: ${help} (${nodes.map(({ target }) => target.join(" ")).join(", ")})`);
}

/** What was wrongly set up: the tests are started by `cargo xtask test`, which names it all. */
function needed(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set; start these tests with: cargo xtask test --only browser`);
  return value;
}

function environment(token) {
  const python = process.env.LOCKSTEP_TEST_VENV && join(process.env.LOCKSTEP_TEST_VENV, "bin/python");
  return { ...process.env, LOCKSTEP_ADMIN_TOKEN: token, ...(python && { LOCKSTEP_PYTHON: python }) };
}

async function call(url, token, method, path, body) {
  const response = await fetch(url + path, {
    method,
    headers: { authorization: `Bearer ${token}`, ...(body && { "content-type": "application/json" }) },
    body: body && JSON.stringify(body),
    signal: AbortSignal.timeout(SHOWN_MS),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

function collect(child) {
  const printed = { text: "" };
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (bytes) => (printed.text += bytes));
  return printed;
}

async function stop(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  const late = AbortSignal.timeout(STOP_MS);
  late.addEventListener("abort", () => child.kill("SIGKILL"));
  await ended;
}

/** Chromium reports every refused request as an error; a page that is not logged in yet is refused on purpose. */
function isExpected(text) {
  return /status of 401/.test(text);
}
