// The first steps of a new user without a mouse: each stop of the Tab key is visible and follows the one before in reading order.

import assert from "node:assert/strict";
import test from "node:test";

import { SHOWN_MS, openPage, pressUntilAt, startBrowser, startDemo, waitFor } from "./harness.mjs";
import { followPath } from "./newcomer.mjs";

/** More than from the top of the overview to its grid of GPUs. */
const STOPS_MAX = 60;

test("the demo with the keyboard", async (t) => {
  const lockstep = await startDemo(t);
  const browser = await startBrowser(t);
  const page = await openPage(t, browser);
  const { keyboard } = page;

  await t.test("the log-in needs no mouse, and the first stop leads past the header", async () => {
    await page.goto(lockstep.url);
    await waitFor("the token can be typed", SHOWN_MS, () => hasFocus(page.getByLabel("Token")));
    await keyboard.type(lockstep.token);
    await keyboard.press("Enter");
    await openOverview(page, lockstep);
    await keyboard.press("Tab");
    assert.ok(await hasFocus(page.getByRole("link", { name: "Skip to content" })));
    await keyboard.press("Enter");
    await waitFor("the page has the focus", SHOWN_MS, () => hasFocus(page.locator("main")));
  });

  const press = async (place) => {
    await tabTo(page, place);
    await keyboard.press("Enter");
  };
  const seen = async (screen) => {
    if (screen === "overview") await readOverview(page, lockstep);
    if (screen === "diagnosis") await openByShortcuts(page);
    if (screen === "action") await leaveAndReturn(page);
  };
  await followPath(t, { lockstep, page, press, seen });
  await page.close();
});

/** Loads the overview, so that the next stop is the first one. */
async function openOverview(page, lockstep) {
  await page.getByTestId("connection").getByText("live").waitFor();
  await page.goto(lockstep.url);
  await page.getByTestId("connection").getByText("live").waitFor();
}

/** Goes through the header and the lists to the grid of GPUs, whose arrow keys select a GPU. */
async function readOverview(page, lockstep) {
  await openOverview(page, lockstep);
  await page.getByTestId("needs-you").first().waitFor();
  await tabTo(page, page.getByTestId("gpu-grid"));
  await page.keyboard.press("ArrowRight");
  await page.getByTestId("gpu-words").getByText(/ GPU 0 · /).waitFor();
  await openOverview(page, lockstep);
}

/** Finds the same diagnosis in the list of diagnoses. */
async function openByShortcuts(page) {
  assert.ok(await hasFocus(page.locator("main")), "a new page has the focus");
  await pressUntilAt(page, ["g", "d"], "/diagnoses");
  await page.getByTestId("firing").waitFor();
  await page.keyboard.press("/");
  assert.ok(await hasFocus(page.getByLabel("Filter")));
  await page.keyboard.type("stragglerrank");
  const row = page.locator("[data-testid=diagnosis-row][data-rule=StragglerRank]").first();
  await tabTo(page, row.getByRole("link").first());
  await page.keyboard.press("Enter");
  await page.getByTestId("what").getByText(/Rank 17/).waitFor();
}

/** Closes the dialog with Escape, which returns to the button, and opens it again. */
async function leaveAndReturn(page) {
  const dialog = page.getByRole("dialog");
  assert.ok(await dialog.evaluate((element) => element === document.activeElement), "the dialog has the focus");
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  const button = page.getByTestId("action").filter({ hasText: /demo-02/ }).first();
  assert.ok(await hasFocus(button), "the button has the focus again");
  await page.keyboard.press("Enter");
  await dialog.waitFor();
}

/** Presses Tab until the place has the focus. Checks each stop on the way. */
async function tabTo(page, place) {
  const stops = [];
  await page.evaluate(() => void (globalThis.lastStop = document.activeElement));
  while (!(await hasFocus(place))) {
    await page.keyboard.press("Tab");
    const { name, isVisible, isInOrder } = await page.evaluate(lookAtStop);
    stops.push(name);
    const way = stops.join(" → ");
    assert.ok(isVisible, `the focus cannot be seen: ${way}`);
    assert.ok(isInOrder, `not in reading order: ${way}`);
    assert.ok(stops.length < STOPS_MAX, `not found: ${way}`);
  }
}

const hasFocus = (place) => place.evaluate((element) => element === document.activeElement);

/** Runs in the page: describes the element with the focus, compared with the one before. */
function lookAtStop() {
  const now = document.activeElement;
  const before = globalThis.lastStop;
  globalThis.lastStop = now;
  const name = `${now.tagName.toLowerCase()} ${(now.getAttribute("aria-label") ?? now.textContent).trim().slice(0, 40)}`;
  const [box] = now.getClientRects();
  if (now === document.body || !box) return { name, isVisible: now === document.body, isInOrder: true };
  const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(now);
  const isMarked = (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none";
  const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  const isOnTop = top !== null && (now.contains(top) || top.contains(now));
  const [last] = before.isConnected && before !== document.body ? before.getClientRects() : [];
  const isBelow = !last || box.top >= last.bottom - 1;
  const isInOrder = isBelow || before.contains(now) || (box.bottom > last.top && box.left >= last.left);
  return { name, isVisible: isMarked && isOnTop, isInOrder };
}
