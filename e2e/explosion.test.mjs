// A run with exploding gradients, from the form to the end of its diagnosis. It measures how soon the diagnosis is shown, so no other test
// may run beside it.

import assert from "node:assert/strict";
import test from "node:test";

import { accessibilityFaults, logIn, openPage, picture, startBrowser, startLockstep } from "./harness.mjs";
import { TRAINING_MS, points, runOf, stop, submit } from "./training.mjs";

/** From the first bad step to the diagnosis on the page. */
const DIAGNOSED_MS = 10_000;

test("an exploding run", async (t) => {
  const lockstep = await startLockstep(t);
  const browser = await startBrowser(t);
  const page = await openPage(t, browser);
  await logIn(page, lockstep);

  await t.test("a learning rate of 1000 is diagnosed with evidence, within seconds of the first bad step", async () => {
    await submit(page, "steps=100000\nlr=1000\nstep-delay-ms=50\nlog-every=5");
    const run = runOf(page);
    await page.locator("[data-rule=GradientExplosion]").first().waitFor({ timeout: TRAINING_MS + DIAGNOSED_MS });
    const shownMs = Date.now();
    // That of the loss, if it overflowed first: then the explosion is a line below it.
    const card = page.getByTestId("diagnosis");
    const badMs = await firstBadStep(lockstep, run);
    assert.ok(shownMs - badMs <= DIAGNOSED_MS, `the diagnosis came ${(shownMs - badMs) / 1000} s after the first bad step`);
    await card.getByRole("link", { name: "Evidence and actions" }).waitFor();
    await card.locator("summary").click();
    await card.getByTestId("evidence").first().waitFor();
    assert.match(await card.getByTestId("evidence").first().innerText(), /\d/);
    await card.evaluate((element) => (element.dataset.marked = "yes"));
    const before = await points(page, 1);
    await points(page, before + 2);
    assert.equal(await card.getAttribute("data-marked"), "yes", "the card was kept, not rebuilt");
    assert.equal(await card.locator("details").getAttribute("open"), "", "its evidence stays open");
    await card.scrollIntoViewIfNeeded();
    await picture(page, "diagnosis");
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("the diagnosis goes with the run, and the alert stays in the history", async () => {
    const run = runOf(page);
    await stop(page);
    await page.getByTestId("diagnosis").waitFor({ state: "detached", timeout: 90_000 });
    await page.getByRole("navigation").getByRole("link", { name: "Rules" }).click();
    const alert = page.locator("[data-testid=alert][data-rule=GradientExplosion][data-state=resolved]");
    await alert.filter({ hasText: run }).waitFor();
  });

  // The page sends requests while it is open, and the collector ends before the browser.
  await page.close();
});

/** Returns when the loss first exceeded three times its best, or was not finite; milliseconds since the epoch. */
async function firstBadStep(lockstep, run) {
  const now = Date.now() / 1000;
  const bad = `max(train_loss{run="${run}"}) > 3 * min(train_loss_best{run="${run}"} > 0) or sum(train_nonfinite_steps_total{run="${run}"}) > 0`;
  const path = `/api/v1/query_range?query=${encodeURIComponent(bad)}&start=${now - 120}&end=${now}&step=0.5`;
  const { data } = await lockstep.call("GET", path);
  const times = data.result.flatMap(({ values }) => values.map(([at]) => at));
  assert.ok(times.length > 0, "there is a bad step");
  return Math.min(...times) * 1000;
}
