// The first steps of a new user with a mouse: from the overview of `lockstep demo` to the verdict in five clicks.

import assert from "node:assert/strict";
import test from "node:test";

import { accessibilityFaults, logIn, openPage, picture, startBrowser, startDemo } from "./harness.mjs";
import { followPath } from "./newcomer.mjs";

test("the demo", async (t) => {
  const lockstep = await startDemo(t);
  const browser = await startBrowser(t);
  const page = await openPage(t, browser);
  await logIn(page, lockstep);
  let clicks = 0;
  const press = async (place) => {
    clicks += 1;
    await place.click();
  };
  const seen = async (screen) => {
    if (screen === "diagnosis") assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, `demo-${screen}`);
  };
  await followPath(t, { lockstep, page, press, seen });
  assert.ok(clicks <= 5, `${clicks} clicks`);
  await page.close();
});
