// The path of a new user through `lockstep demo`: the overview names the slow rank, its diagnosis offers an action, the action runs, and the
// page says whether it helped. The tests of the demo differ in how a person presses things and in what they check on each screen.

import assert from "node:assert/strict";

/** A GPU slows down 12 s after the first step, and the diagnosis names the rank some seconds later. */
const NAMED_MS = 240_000;
/** The next attempt has to make 20 steps. */
const VERDICT_MS = 240_000;

/**
 * Follows the path on a page that shows the overview. `press(place)` presses a link or a button, the only thing that the person does.
 * `seen(screen)` is called on each screen: overview, diagnosis, action, after.
 */
export async function followPath(test, { lockstep, page, press, seen }) {
  await test.test("the overview names the slow rank, its diagnosis offers an action, and the action runs", async () => {
    const entry = page.locator("[data-testid=needs-you][data-rule=StragglerRank]");
    await entry.waitFor({ timeout: NAMED_MS });
    assert.match(await entry.innerText(), /Rank 17 of llama-8b-fsdp/);
    await seen("overview");
    await press(entry.locator("summary"));
    await press(entry.getByRole("link", { name: "Evidence and actions" }));
    await page.getByTestId("what").getByText(/Rank 17/).waitFor();
    const exclude = page.getByTestId("action").filter({ hasText: /demo-02/ }).first();
    await exclude.waitFor();
    await seen("diagnosis");
    await press(exclude);
    const dialog = page.getByRole("dialog");
    assert.match(await dialog.getByTestId("action-cost").innerText(), /step/);
    await seen("action");
    await press(dialog.getByTestId("confirm-action"));
    await page.getByTestId("timeline").getByText(/demo-02/).waitFor();
  });

  await test.test("the next attempt continues without the node, and the page says whether it helped", async () => {
    await page.getByTestId("timeline").getByText(/Before and after/).waitFor({ timeout: VERDICT_MS });
    await seen("after");
    const runs = await lockstep.call("GET", "/api/runs");
    const { id } = runs.find(({ name }) => name === "llama-8b-fsdp");
    const run = await lockstep.call("GET", `/api/runs/${id}`);
    const last = run.attempts.at(-1);
    assert.equal(last.no ?? last.attempt, 2);
    assert.ok(!last.nodes.some(({ node }) => node === "demo-02"), "the node is excluded");
  });
}
