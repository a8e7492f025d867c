// The heap of pages that stay open: read at intervals, each time after a garbage collection.

import { setTimeout as pause } from "node:timers/promises";

import { startBrowser } from "../harness.mjs";
import { livePage, measure, progress } from "./page.mjs";

await measure(async (scope, { paths, warm_up_s: warmUpS, seconds, every_s: everyS, ...lockstep }) => {
  const browser = await startBrowser(scope);
  const pages = [];
  for (const path of paths) {
    const page = await livePage(scope, browser, lockstep, path);
    const session = await page.context().newCDPSession(page);
    await session.send("HeapProfiler.enable");
    pages.push({ session, times_s: [], bytes: [], nodes: [] });
  }
  progress(`the pages are open; the first reading is in ${warmUpS} s`);
  const begun = Date.now();
  for (let dueS = warmUpS; dueS <= warmUpS + seconds; dueS += everyS) {
    await pause(Math.max(begun + dueS * 1_000 - Date.now(), 0));
    for (const page of pages) {
      const { bytes, nodes } = await read(page.session);
      page.times_s.push((Date.now() - begun) / 1_000);
      page.bytes.push(bytes);
      page.nodes.push(nodes);
    }
    progress(`after ${dueS} s: ${pages.map(({ bytes }) => `${(bytes.at(-1) / 2 ** 20).toFixed(2)} MiB`).join(", ")}`);
  }
  return { pages: pages.map(({ times_s, bytes, nodes }) => ({ times_s, bytes, nodes })) };
});

/** Returns the bytes of the page's heap: scripts, document, and the memory of WebAssembly, which is a buffer. */
async function read(session) {
  await session.send("HeapProfiler.collectGarbage");
  const { usedSize, embedderHeapUsedSize = 0, backingStorageSize = 0 } = await session.send("Runtime.getHeapUsage");
  const { nodes } = await session.send("Memory.getDOMCounters");
  return { bytes: usedSize + embedderHeapUsedSize + backingStorageSize, nodes };
}
