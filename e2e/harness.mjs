// Shared code of the browser tests: their own Lockstep, a Chromium, and waits for conditions with a deadline.
//
// Each test stops what it has started. Everything listens on loopback and has its own data folder.

import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdir, mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

// The packages are outside the checkout, where Node does not search for modules.
const require = createRequire(join(needed("LOCKSTEP_TEST_NODE_MODULES"), "here.js"));

/** A collector on two loaded cores starts within two seconds; after one minute it has failed. */
const START_MS = 60_000;
/** An orderly stop also stops the agent. */
const STOP_MS = 20_000;
/** Final states. */
const FINAL = ["stopped", "succeeded", "failed"];
/**
 * How long a page may take to show what a test waits for, unless the test says otherwise. No test waits that long if all is well: the limit is
 * for a slow machine that stalls for seconds.
 */
export const SHOWN_MS = 45_000;
/** The OpenAPI document of each collector, by host. Read when it starts: at the end of a test it may have stopped. */
const documents = new Map();

/**
 * Starts `lockstep up` on a free port with simulated GPUs, and stops it with its runs when the test ends. `rack`: the rack of its node.
 * Gives `{ url, token, data, call, process }`, where `call(method, path, body)` speaks to the API as admin.
 */
export async function startLockstep(test, { simulate = "h100x8:healthy", rack } = {}) {
  const data = await mkdtemp(join(tmpdir(), "lockstep-e2e-"));
  const token = randomBytes(24).toString("hex");
  const lockstep = { token, data, simulate, rack, call: (...request) => call(lockstep.url, token, ...request) };
  test.after(async () => {
    await stopRuns(lockstep).catch((error) => console.error(`runs were not stopped in order: ${error.message}`));
    await stop(lockstep.process);
    await sweep(data);
    // A process that was just killed may still write.
    await rm(data, { recursive: true, force: true, maxRetries: 10 });
  });
  await launch(lockstep, "127.0.0.1:0");
  return lockstep;
}

/** Starts `lockstep demo` on a free port and stops it when the test ends. Gives `{ url, token, call, process }`. */
export async function startDemo(test) {
  const child = spawn(needed("LOCKSTEP_TEST_BINARY"), ["demo", "--listen", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "pipe"] });
  test.after(() => stop(child));
  const printed = collect(child);
  const [url, token] = await waitFor("lockstep demo prints its address", START_MS, () => {
    if (child.exitCode !== null) throw new Error(`lockstep demo ended with ${child.exitCode}:\n${printed.text}`);
    return /Dashboard +(http\S+)\s+Log in with (\S+)/.exec(printed.text)?.slice(1);
  });
  const demo = { url, token, process: child, call: (...request) => call(url, token, ...request) };
  await readDocument(demo);
  return demo;
}

/** Kills the collector with SIGKILL, waits for `meanwhile`, and starts it again at the same address with the same data. */
export async function killAndRestart(lockstep, meanwhile) {
  const gone = new Promise((resolve) => lockstep.process.once("exit", resolve));
  lockstep.process.kill("SIGKILL");
  await gone;
  await meanwhile();
  await launch(lockstep, new URL(lockstep.url).host);
}

/** Starts Chromium and closes it when the test ends. It may connect only to loopback. */
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
      // The browser treats a page that a test serves itself as an external page, which may not connect to loopback.
      ...(process.env.LOCKSTEP_TEST_DIST ? ["--disable-features=LocalNetworkAccessChecks"] : []),
    ],
  });
  test.after(() => browser.close());
  return browser;
}

/** Chromium's messages without a response; expected in tests that stop the collector. */
export const NOBODY_ANSWERS = /ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_SOCKET_NOT_CONNECTED|WebSocket connection to|WebSocket is already in CLOSING/;

/**
 * A page whose errors fail the test at its end: an exception, a failed request for a file, a refused script, a request that is not in the
 * collector's OpenAPI document. What matches `expected` is no error in this test, except a request that is not in the document.
 */
export async function openPage(test, browser, { dark = false, width = 1280, height = 900, touch = false, timezone, locale, expected } = {}) {
  const context = await browser.newContext({
    viewport: { width, height },
    hasTouch: touch,
    isMobile: touch,
    colorScheme: dark ? "dark" : "light",
    reducedMotion: "reduce",
    ...(timezone && { timezoneId: timezone }),
    ...(locale && { locale }),
  });
  await serveDashboardFrom(context, process.env.LOCKSTEP_TEST_DIST);
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(`exception: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" && !isExpected(message.text(), message.location().url) && !expected?.test(message.text())) errors.push(`console: ${message.text()}`);
  });
  const requests = apiRequests(context, page);
  test.after(async () => {
    // Before the page is closed: what it sends while its socket closes is no fault.
    const complaints = [...errors, ...undocumented(requests)];
    await context.close();
    if (complaints.length > 0) throw new Error(`the page complained:\n${complaints.join("\n")}`);
  });
  page.setDefaultTimeout(SHOWN_MS);
  return page;
}

/**
 * Polls until `condition` returns a true value, and returns it. Fails at the deadline, with the last error if there was one. The deadline is at
 * least that of a click, and there is a try after it: a machine that stalls must not end the wait before the condition was read again.
 */
export async function waitFor(what, withinMs, condition) {
  const limitMs = Math.max(withinMs, SHOWN_MS);
  const deadline = Date.now() + limitMs;
  let isLastTry = false;
  let last;
  while (!isLastTry) {
    isLastTry = Date.now() >= deadline;
    try {
      const value = await condition();
      if (value) return value;
    } catch (error) {
      // A refused connection or a missing element is expected while waiting; a program that has ended is an error.
      if (/ended with/.test(error.message)) throw error;
      last = error;
    }
    if (!isLastTry) await pause(100);
  }
  throw new Error(`not within ${limitMs / 1000} s: ${what}${last ? ` (${last.message})` : ""}`);
}

/**
 * Presses a sequence of keys, such as `g` and `r`, until the page has this path. The page forgets the first key after a moment, and a machine
 * that stalls takes longer between two keys.
 */
export async function pressUntilAt(page, keys, path) {
  await waitFor(`${keys.join(" ")} opens ${path}`, SHOWN_MS, async () => {
    for (const key of keys) await page.keyboard.press(key);
    return (await page.evaluate(() => location.pathname)) === path;
  });
}

/** Types the token and waits for the overview. `press` presses the button. */
export async function logIn(page, lockstep, press = (place) => place.click()) {
  await page.goto(lockstep.url);
  await page.getByLabel("Token").fill(lockstep.token);
  await press(page.getByRole("button", { name: "Log in" }));
  await page.getByTestId("connection").getByText("live").waitFor();
}

/** Stores samples of the past by remote write. `series`: a list of `{ labels, samples }`, where a sample is `[time in ms, value]`. */
export async function writeSamples({ url, token }, series) {
  const label = ([name, value]) => field(1, field(1, Buffer.from(name)), field(2, Buffer.from(value)));
  const sample = ([timeMs, value]) => {
    const double = Buffer.alloc(8);
    double.writeDoubleLE(value);
    return field(2, Buffer.from([(1 << 3) | 1]), double, Buffer.from([2 << 3]), varint(timeMs));
  };
  const sorted = (labels) => Object.entries(labels).sort(([a], [b]) => (a < b ? -1 : 1));
  const request = Buffer.concat(series.map(({ labels, samples }) => field(1, ...sorted(labels).map(label), ...samples.map(sample))));
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/x-protobuf", "content-encoding": "snappy" };
  const response = await fetch(`${url}/api/v1/write`, { method: "POST", headers, body: uncompressedSnappy(request), signal: AbortSignal.timeout(SHOWN_MS) });
  if (response.status !== 204) throw new Error(`remote write: ${response.status} ${await response.text()}`);
}

/**
 * Opens an address of the dashboard with a session, as a browser does that has logged in before. `logIn` is for tests that begin with the
 * log-in page or stay on the overview.
 */
export async function openAt(page, lockstep, path) {
  const response = await page.context().request.post(`${lockstep.url}/api/session`, { data: { token: lockstep.token } });
  if (!response.ok()) throw new Error(`no session: ${response.status()} ${await response.text()}`);
  await page.goto(lockstep.url + path);
}

/** Reads a message of the collector's event stream: JSON, or the head of a binary frame (crates/domain/src/api/frames.rs). */
export function readPush(message) {
  if (typeof message === "string") return JSON.parse(message);
  return { type: "frame", id: message.readUInt32LE(2), reset: (message[1] & 1) === 1, times: message.readUInt32LE(14) };
}

/** Scrolls to a chart until it is drawn. Far outside of the window it is not, and what appears above it moves it. */
export async function scrollToDrawn(chart) {
  await waitFor("the chart is drawn", SHOWN_MS, async () => {
    await chart.scrollIntoViewIfNeeded();
    return chart.locator("canvas").isVisible();
  });
}

/** Reads several texts at the same moment, because they change each second. */
export function textsAtOnce(page, ...selectors) {
  return page.evaluate((selectors) => selectors.map((selector) => document.querySelector(selector).innerText), selectors);
}

/** Saves a screenshot of the window if LOCKSTEP_TEST_IMAGES names a folder. */
export async function picture(page, name) {
  const folder = process.env.LOCKSTEP_TEST_IMAGES;
  if (!folder) return;
  await mkdir(folder, { recursive: true });
  await page.screenshot({ path: join(folder, `${name}.png`), animations: "disabled" });
}

/** Returns the serious and critical accessibility problems of the page, one line each. */
export async function accessibilityFaults(page) {
  const source = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");
  // Not a script tag: the page's content security policy refuses it, as intended.
  await page.evaluate(source);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return grave.map(({ id, help, nodes }) => `${id}: ${help} (${nodes.map(({ target }) => target.join(" ")).join(", ")})`);
}

/** Reads the OpenAPI document of a collector that has just started. */
async function readDocument({ url, call }) {
  const document = await waitFor("the collector describes its endpoints", START_MS, () => call("GET", "/api/openapi.json"));
  documents.set(new URL(url).host, document);
}

/**
 * Collects the requests of a page to the API, also those that a test answers itself: method, host, path, and the names of the query
 * parameters. A set, because a page repeats most of them.
 */
function apiRequests(context, page) {
  const requests = new Set();
  const add = (method, url) => {
    const { host, pathname, searchParams } = new URL(url);
    if (pathname === "/api" || pathname.startsWith("/api/")) requests.add(JSON.stringify([method, host, pathname, [...new Set(searchParams.keys())]]));
  };
  context.on("request", (request) => add(request.method(), request.url()));
  page.on("websocket", (socket) => add("GET", socket.url()));
  return requests;
}

/**
 * Returns the requests that are not in the OpenAPI document of their collector, one line each. Not checked: a collector that was not started
 * here, as in the benchmarks.
 */
function undocumented(requests) {
  const fault = ([method, host, path, names]) => {
    const document = documents.get(host);
    if (!document) return undefined;
    const item = document.paths[templateOf(document, path)];
    if (!item) return "no such path";
    const operation = item[method.toLowerCase()];
    if (!operation) return "no such method";
    const known = (operation.parameters ?? []).filter((parameter) => parameter.in === "query").map(({ name }) => name);
    const unknown = names.filter((name) => !known.includes(name));
    return unknown.length > 0 && `no such query parameter: ${unknown.join(", ")}`;
  };
  const line = (request) => {
    const found = fault(request);
    return found && `request that is not in the OpenAPI document: ${request[0]} ${request[2]}: ${found}`;
  };
  return [...requests].map((request) => line(JSON.parse(request))).filter(Boolean);
}

/** Returns the path of the document that a request matches, as the router does: `/api/runs/compare` rather than `/api/runs/{id}`. */
function templateOf(document, path) {
  const parts = path.split("/");
  const fits = (template) => {
    const wanted = template.split("/");
    return wanted.length === parts.length && wanted.every((part, n) => part === parts[n] || (part.startsWith("{") && parts[n] !== ""));
  };
  const values = (template) => template.split("{").length;
  return Object.keys(document.paths).filter(fits).sort((a, b) => values(a) - values(b))[0];
}

/** LOCKSTEP_TEST_DIST tests the dashboard in that folder with a binary that embeds another one. */
async function serveDashboardFrom(context, folder) {
  if (!folder) return;
  const files = await readdir(folder);
  await context.route(
    ({ pathname }) => files.includes(pathname.slice(1)),
    (route) => route.fulfill({ path: join(folder, new URL(route.request().url()).pathname) }),
  );
  // The dashboard has an address for each of its pages.
  await context.route(
    (url) => !/\.\w+$|^\/api\//.test(url.pathname),
    (route) => (route.request().isNavigationRequest() ? route.fulfill({ path: join(folder, "index.html") }) : route.fallback()),
  );
}

/** An error in the set-up: `cargo xtask test` starts the tests and sets all variables. */
function needed(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set; start these tests with: cargo xtask test --only browser`);
  return value;
}

function environment({ token, rack }) {
  const python = process.env.LOCKSTEP_TEST_VENV && join(process.env.LOCKSTEP_TEST_VENV, "bin/python");
  // The agent's own /metrics has a fixed port, which another Lockstep on this machine may use.
  return { ...process.env, LOCKSTEP_ADMIN_TOKEN: token, LOCKSTEP_METRICS_LISTEN: "off", ...(python && { LOCKSTEP_PYTHON: python }), ...(rack && { LOCKSTEP_RACK: rack }) };
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

async function launch(lockstep, listen) {
  const child = spawn(
    needed("LOCKSTEP_TEST_BINARY"),
    ["up", "--listen", listen, "--data", lockstep.data, "--simulate", lockstep.simulate],
    { env: environment(lockstep), stdio: ["ignore", "pipe", "pipe"] },
  );
  lockstep.process = child;
  const printed = collect(child);
  lockstep.url = await waitFor("lockstep up prints its address", START_MS, () => {
    if (child.exitCode !== null) throw new Error(`lockstep up ended with ${child.exitCode}:\n${printed.text}`);
    return /Lockstep is at (http\S+)/.exec(printed.text)?.[1];
  });
  await waitFor("the collector is ready", START_MS, async () => (await fetch(`${lockstep.url}/-/ready`)).ok);
  await readDocument(lockstep);
}

/** Runs outlive collector and agent by design, so a test that fails during a run must end it. */
async function stopRuns(lockstep) {
  const active = async () => (await lockstep.call("GET", "/api/runs")).filter(({ state }) => !FINAL.includes(state));
  for (const { id } of await active()) await lockstep.call("POST", `/api/runs/${id}/stop`, { grace_ms: 1_000 });
  await waitFor("every run has ended", STOP_MS, async () => (await active()).length === 0);
}

/** Ends processes with this test's own data folder in their command line or environment. */
async function sweep(data) {
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)) {
    const texts = await Promise.all(["cmdline", "environ"].map((file) => readFile(`/proc/${pid}/${file}`, "latin1").catch(() => "")));
    if (!texts.some((text) => text.includes(data))) continue;
    console.error(`process ${pid} was left over: ${texts[0].replaceAll("\0", " ")}`);
    try {
      process.kill(Number(pid), "SIGKILL");
    } catch {
      // The process has ended meanwhile.
    }
  }
}

/** A field of a protobuf message: its number, and the parts of its bytes. */
function field(number, ...parts) {
  const bytes = Buffer.concat(parts);
  return Buffer.concat([varint((number << 3) | 2), varint(bytes.length), bytes]);
}

function varint(number) {
  const bytes = [];
  let rest = BigInt(number);
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return Buffer.from([...bytes, Number(rest)]);
}

/** A snappy block of literals. The tag 61 says that two bytes with the length follow. */
function uncompressedSnappy(plain) {
  const parts = [varint(plain.length)];
  for (let at = 0; at < plain.length; at += 65_536) {
    const literal = plain.subarray(at, at + 65_536);
    parts.push(Buffer.from([61 << 2, (literal.length - 1) & 255, (literal.length - 1) >> 8]), literal);
  }
  return Buffer.concat(parts);
}

function collect(child) {
  const printed = { text: "" };
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (bytes) => (printed.text += bytes));
  return printed;
}

async function stop(child) {
  if (!child || child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  const late = AbortSignal.timeout(STOP_MS);
  late.addEventListener("abort", () => child.kill("SIGKILL"));
  await ended;
}

/**
 * Chromium reports every refused request as an error; a page that is not logged in yet is refused on purpose, and one asks for
 * checkpoints also where the collector lists none.
 */
function isExpected(text, url) {
  return /status of 401/.test(text) || (/status of 404/.test(text) && /\/checkpoints$/.test(url));
}
