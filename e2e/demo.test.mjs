// The first steps of a new user: `lockstep demo`, the sentence on the overview, the diagnosis, an action, and its verdict: five clicks.

import assert from "node:assert/strict";
import test from "node:test";

import { accessibilityFaults, logIn, openPage, picture, startBrowser, startDemo } from "./harness.mjs";

/** A GPU slows down 12 s after the first step, and the diagnosis names the rank some seconds later. */
const NAMED_MS = 90_000;
/** The next attempt has to make 20 steps. */
const VERDICT_MS = 90_000;

test("the demo", async (t) => {
  const lockstep = await startDemo(t);
  const browser = await startBrowser(t);
  const page = await openPage(t, browser);
  await logIn(page, lockstep);
  let clicks = 0;
  const click = async (place) => {
    clicks += 1;
    await place.click();
  };

  await t.test("the overview names the slow rank, its diagnosis offers an action, and the action runs", async () => {
    const entry = page.locator("[data-testid=needs-you][data-rule=StragglerRank]");
    await entry.waitFor({ timeout: NAMED_MS });
    assert.match(await entry.innerText(), /Rank 17 of llama-8b-fsdp/);
    await picture(page, "demo-overview");
    await click(entry.locator("summary"));
    await click(entry.getByRole("link", { name: "Evidence and actions" }));
    await page.getByTestId("what").getByText(/Rank 17/).waitFor();
    const exclude = page.getByTestId("action").filter({ hasText: /demo-02/ }).first();
    await exclude.waitFor();
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "demo-diagnosis");
    await click(exclude);
    const dialog = page.getByRole("dialog");
    assert.match(await dialog.getByTestId("action-cost").innerText(), /step/);
    await picture(page, "demo-action");
    await click(dialog.getByTestId("confirm-action"));
    await page.getByTestId("timeline").getByText(/demo-02/).waitFor();
  });

  await t.test("the next attempt continues without the node, and the page says whether it helped", async () => {
    await page.getByTestId("timeline").getByText(/Before and after/).waitFor({ timeout: VERDICT_MS });
    await picture(page, "demo-after");
    const runs = await lockstep.call("GET", "/api/runs");
    const { id } = runs.find(({ name }) => name === "llama-8b-fsdp");
    const run = await lockstep.call("GET", `/api/runs/${id}`);
    const last = run.attempts.at(-1);
    assert.equal(last.no ?? last.attempt, 2);
    assert.ok(!last.nodes.some(({ node }) => node === "demo-02"), "the node is excluded");
    assert.ok(clicks <= 5, `${clicks} clicks`);
  });

  await page.close();
});
