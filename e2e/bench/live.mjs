// When a page shows the steps of a run, while other clients of the event stream watch what the page watches.

import { readFile } from "node:fs/promises";
import { setTimeout as pause } from "node:timers/promises";

import { SHOWN_MS, startBrowser, waitFor } from "../harness.mjs";
import { livePage, measure, progress } from "./page.mjs";
import { StreamClient } from "./stream.mjs";

/** Until all clients have got their first, whole answers. */
const SETTLE_MS = 15_000;
/** The overview of a thousand nodes, on a busy machine. */
const OVERVIEW_MS = 60_000;
/** Ticks of /proc per second. */
const USER_HZ = 100;

await measure(async (scope, { run, clients, seconds, server_pid: serverPid, ...lockstep }) => {
  const browser = await startBrowser(scope);
  const page = await livePage(scope, browser, lockstep, "/");
  const cell = `tr[data-run="${run}"] td:nth-child(3)`;
  const streams = await openStreams(scope, lockstep, clients, await watches(page));
  progress(`${clients} clients are open`);
  await waitFor("the page shows a step", OVERVIEW_MS, async () => /^\d+$/.test(await page.locator(cell).innerText()));
  await pause(SETTLE_MS);

  await page.evaluate(noteSteps, cell);
  const bytes = () => streams.reduce((sum, stream) => sum + stream.bytes, 0);
  const [begun, bytesBefore, cpuBefore] = [Date.now(), bytes(), await cpuS(serverPid)];
  progress(`watching for ${seconds} s`);
  await pause(seconds * 1_000);
  const [ended, bytesAfter, cpuAfter] = [Date.now(), bytes(), await cpuS(serverPid)];
  const lost = streams.find((stream) => stream.ended);
  if (lost) throw new Error(`a stream ended: ${lost.ended}`);
  return {
    shown: await page.evaluate(() => globalThis.shownSteps),
    seconds: (ended - begun) / 1_000,
    bytes: bytesAfter - bytesBefore,
    server_cpu_s: cpuAfter - cpuBefore,
  };
});

/** Returns the requests for the watches of a page, by its next connection, which requests all of them again. */
async function watches(page) {
  const open = new Map();
  page.on("websocket", (socket) => {
    open.clear();
    socket.on("framesent", ({ payload }) => {
      const { op, id } = JSON.parse(payload);
      if (op === "unwatch") open.delete(id);
      else open.set(id, payload);
    });
  });
  await page.reload();
  await page.getByTestId("connection").getByText("live").waitFor();
  await waitFor("the page has requested its watches", SHOWN_MS, () => open.size > 0);
  await pause(1_000);
  return [...open.values()];
}

async function openStreams(scope, lockstep, clients, requests) {
  const streams = [];
  for (let n = 0; n < clients; n += 1) {
    const stream = await StreamClient.open(lockstep, requests);
    scope.after(() => stream.close());
    streams.push(stream);
  }
  return streams;
}

/** Returns the CPU seconds of a process and of its children that ended. */
async function cpuS(pid) {
  const stat = await readFile(`/proc/${pid}/stat`, "utf8");
  // After the name: state is field 3; utime, stime, cutime and cstime are 14 to 17.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / USER_HZ;
}

/** Runs in the page. Notes each step that the cell shows, and when the frame with it was drawn. */
function noteSteps(selector) {
  const cell = document.querySelector(selector);
  globalThis.shownSteps = [];
  let before = cell.textContent;
  const observer = new MutationObserver(() => {
    const text = cell.textContent;
    if (text === before || !/^\d+$/.test(text)) return;
    before = text;
    globalThis.afterFrame(() => globalThis.shownSteps.push([Number(text), Date.now()]));
  });
  observer.observe(cell, { subtree: true, childList: true, characterData: true });
}
