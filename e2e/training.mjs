// Runs that train, as a person uses them: submitted in the form, watched by the chart of the loss, and stopped.

import { SHOWN_MS, waitFor } from "./harness.mjs";

/** Two interpreters that load PyTorch on two busy cores. */
export const TRAINING_MS = 240_000;
/** A stop gives the ranks half a minute to end by themselves. */
const STOPPED_MS = 120_000;
export const RANKS = 2;
export const LOSS = '[data-testid=chart][data-title="Loss"]';

/** Submits a run of the recipe `ddp` with these settings, one per line, and waits for its page. */
export async function submit(page, settings) {
  await page.goto(new URL("/runs/new", page.url()).href);
  await page.locator("[name=set]").fill(settings);
  await page.locator("[name=nproc_per_node]").fill(String(RANKS));
  await page.getByTestId("submit-run").click();
  await page.waitForURL(/\/runs\/ddp-/);
}

export async function stop(page) {
  await page.getByTestId("stop").click();
  await page.getByTestId("confirm-stop").click();
  await waitFor("the run has stopped", STOPPED_MS, async () => (await state(page)) === "stopped");
}

export const state = (page) => page.locator("main [data-testid=run-state]").innerText();

export const runOf = (page) => new URL(page.url()).pathname.split("/").at(-1);

/** Waits until the chart of the loss has this many points. Returns their number. */
export function points(page, atLeast, withinMs = SHOWN_MS) {
  return waitFor(`${atLeast} points of the loss`, withinMs, async () => {
    const now = Number(await page.locator(LOSS).getAttribute("data-points"));
    return now >= atLeast && now;
  });
}
