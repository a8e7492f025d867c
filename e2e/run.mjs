// Runs the browser tests by hand: node e2e/run.mjs [--keep-images] [PATTERN]
//
// `cargo xtask test` sets the variables that the harness needs and runs the same files. Here they default to the results of that
// command: its build, its npm packages and its venv. --keep-images replaces the images in docs/images.

import { existsSync, readdirSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";
import { run } from "node:test";
import { fileURLToPath } from "node:url";

/** For each test. `cargo xtask test` has the same limit for each file. */
const LIMIT_MS = 900_000;

const here = dirname(fileURLToPath(import.meta.url));
const root = dirname(here);
const options = process.argv.slice(2);
const pattern = options.find((option) => !option.startsWith("--"));

const cache = process.env.LOCKSTEP_CACHE ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "lockstep");
const target = resolve(root, process.env.CARGO_TARGET_DIR ?? "target");
setDefault("LOCKSTEP_TEST_BINARY", join(target, "debug/lockstep"));
setDefault("LOCKSTEP_TEST_CHROMIUM", onPath(["chromium", "chromium-browser", "google-chrome"]));
setDefault("LOCKSTEP_TEST_NODE_MODULES", newest(join(cache, "npm"), "e2e-", "node_modules"));
setDefault("LOCKSTEP_TEST_VENV", join(cache, "venv"));
if (options.includes("--keep-images")) process.env.LOCKSTEP_TEST_IMAGES = join(root, "docs/images");

const files = readdirSync(here).filter((name) => name.endsWith(".test.mjs")).map((name) => join(here, name));
const counts = { passed: 0, failed: 0 };
const began = Date.now();
const events = run({ files, concurrency: 1, timeout: LIMIT_MS, ...(pattern && { testNamePatterns: [pattern] }) });
events.on("test:pass", (event) => ended(event, "passed"));
events.on("test:fail", (event) => ended(event, "failed"));
events.on("test:stdout", ({ message }) => process.stdout.write(message));
events.on("test:stderr", ({ message }) => process.stderr.write(message));
events.resume();
events.on("end", () => {
  console.log(`in ${((Date.now() - began) / 1000).toFixed(0)} s`);
  console.log(`${counts.passed} passed, ${counts.failed} failed`);
  process.exitCode = counts.failed > 0 || counts.passed === 0 ? 1 : 0;
});

/** A test that has tests in it counts by them, unless it failed by itself. */
function ended({ name, nesting, skip, details }, how) {
  if (skip !== undefined || details.type === "suite" || files.includes(resolve(name))) return;
  const failedInside = details.error?.failureType === "subtestsFailed";
  if (failedInside || (nesting === 0 && how === "passed")) return;
  counts[how] += 1;
  const seconds = (details.duration_ms / 1000).toFixed(1);
  console.log(`${how === "passed" ? "ok  " : "FAIL"} ${name} (${seconds} s)`);
  if (how === "failed") console.log(details.error?.cause?.stack ?? details.error?.cause ?? details.error);
}

function setDefault(name, value) {
  if (process.env[name] === undefined && value && existsSync(value)) process.env[name] = value;
}

function onPath(names) {
  const folders = (process.env.PATH ?? "").split(delimiter);
  return names.flatMap((name) => folders.map((folder) => join(folder, name))).find((file) => existsSync(file));
}

function newest(folder, prefix, inside) {
  if (!existsSync(folder)) return undefined;
  const found = readdirSync(folder).filter((name) => name.startsWith(prefix)).map((name) => join(folder, name, inside));
  return found.filter((path) => existsSync(path)).sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs)[0];
}
