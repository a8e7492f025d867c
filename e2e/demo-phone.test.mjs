// The first steps of a new user on a phone: taps only, nothing is cut off, and what is tapped fits a finger.

import assert from "node:assert/strict";
import test from "node:test";

import { accessibilityFaults, logIn, openPage, startBrowser, startDemo } from "./harness.mjs";
import { followPath } from "./newcomer.mjs";

const PHONE = { width: 390, height: 844, touch: true };
/** Minimum width and height of what is tapped, in pixels. */
const FINGER_PX = 44;

test("the demo on a phone", async (t) => {
  const lockstep = await startDemo(t);
  const browser = await startBrowser(t);
  const page = await openPage(t, browser, PHONE);
  const press = async (place) => {
    await place.waitFor();
    const { width, height } = await place.boundingBox();
    assert.ok(Math.min(width, height) >= FINGER_PX, `${await place.innerText()}: ${width} × ${height} pixels`);
    await place.tap();
  };
  await logIn(page, lockstep, press);
  const seen = async (screen) => {
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= PHONE.width, `${screen}: ${width} pixels wide`);
    assert.deepEqual(await accessibilityFaults(page), [], screen);
  };
  await followPath(t, { lockstep, page, press, seen });
  await page.close();
});
