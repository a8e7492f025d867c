// The pages without a run: log-in, overview, form, rules; on a desk, on a phone and in the dark; and what goes wrong around them.

import assert from "node:assert/strict";
import test from "node:test";

import { accessibilityFaults, logIn, openPage, startBrowser, startLockstep, waitFor } from "./harness.mjs";

const PHONE = { width: 390, height: 844 };
const GPUS = 8;

test("pages", async (t) => {
  const lockstep = await startLockstep(t);
  const browser = await startBrowser(t);

  await t.test("a wrong token is refused in words, the right one opens the overview", async (t) => {
    const page = await openPage(t, browser);
    await page.goto(lockstep.url);
    await page.getByLabel("Token").fill("not-a-token");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("alert").filter({ hasText: "does not open the dashboard" }).waitFor();
    assert.equal(await page.title(), "Log in · Lockstep");
    await logIn(page, lockstep);
    assert.equal(await page.title(), "Overview · Lockstep");
    await page.reload();
    await page.getByTestId("gpu-grid").waitFor();
    assert.deepEqual(await page.context().cookies().then((all) => all.map(({ httpOnly, sameSite }) => [httpOnly, sameSite])), [[true, "Strict"]]);
  });

  await t.test("the overview shows the simulated GPUs, the five indicators, and says that they are simulated", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    const cells = page.getByTestId("gpu-cell");
    await cells.nth(GPUS - 1).waitFor();
    assert.equal(await cells.count(), GPUS);
    await page.getByTestId("simulated").getByText("SIMULATED").waitFor();
    assert.equal(await page.getByTestId("indicator").count(), 5);
    await waitFor("an indicator has a value", 15_000, async () => /GPU memory in use\s*\d/.test(await page.getByTestId("indicator").first().innerText()));
    await waitFor("each cell has a value", 15_000, async () => (await cells.allInnerTexts()).every((text) => /\d %/.test(text)));
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("another indicator recolours the same cells", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    const cell = page.getByTestId("gpu-cell").first();
    const colour = () => cell.evaluate((element) => element.style.backgroundColor);
    const before = await waitFor("the cell has a colour", 15_000, colour);
    await cell.evaluate((element) => (element.dataset.marked = "yes"));
    await page.getByTestId("colour-by").selectOption({ label: "temperature" });
    await waitFor("the cell shows degrees", 15_000, async () => /°C/.test(await cell.innerText()));
    assert.notEqual(await colour(), before);
    assert.equal(await cell.getAttribute("data-marked"), "yes", "the cell was kept, not built anew");
  });

  await t.test("the form says what is wrong as the server would, and no longer when it is right", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.getByRole("navigation").getByRole("link", { name: "New run" }).click();
    const start = page.getByTestId("submit-run");
    const mistakes = page.getByTestId("mistake");
    assert.equal(await start.isEnabled(), true);
    await page.locator("[name=nodes]").fill("0");
    await mistakes.getByText("ask for 1 to 1024 nodes").waitFor();
    assert.equal(await start.isEnabled(), false);
    await page.locator("[name=nodes]").fill("1");
    await mistakes.waitFor({ state: "detached" });
    await page.locator("[name=set]").fill("steps");
    await mistakes.getByText("is not NAME=VALUE").waitFor();
    await page.locator("[name=set]").fill("steps=10");
    await mistakes.waitFor({ state: "detached" });
    await page.locator("[name=recipe]").selectOption({ label: "a script of my own" });
    await mistakes.getByText("give the path of the script").waitFor();
    await page.locator("[name=script]").fill("train.py");
    await mistakes.getByText("give an absolute path").waitFor();
    await page.locator("[name=script]").fill("/srv/train.py");
    await mistakes.waitFor({ state: "detached" });
    assert.equal(await start.isEnabled(), true);
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("the rules are listed, and an opened one stays open while news arrives", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.goto(`${lockstep.url}/rules`);
    const rule = page.locator("[data-testid=rule][data-rule=GradientExplosion]");
    await rule.locator("summary").click();
    const evaluated = () => rule.getByText("evaluated").locator("time").getAttribute("title");
    const before = await evaluated();
    await waitFor("the rule was evaluated again", 15_000, async () => (await evaluated()) !== before);
    assert.equal(await rule.getAttribute("open"), "");
    assert.ok((await page.getByTestId("rule").count()) >= 10);
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("on a phone nothing is cut off", async (t) => {
    const page = await openPage(t, browser, PHONE);
    await logIn(page, lockstep);
    for (const path of ["/", "/runs/new", "/rules"]) {
      await page.goto(lockstep.url + path);
      await page.locator("main h1").waitFor({ state: "attached" });
      await page.getByTestId("simulated").waitFor();
      if (path === "/rules") await page.getByTestId("rule").first().waitFor();
      await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
      const beyond = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.equal(beyond, 0, `${path} is ${beyond} pixels too wide`);
    }
  });

  await t.test("in the dark the pages are dark, and readable", async (t) => {
    const page = await openPage(t, browser, { dark: true });
    await logIn(page, lockstep);
    await page.getByTestId("gpu-cell").first().waitFor();
    const light = await page.evaluate(() => {
      const canvas = document.createElement("canvas").getContext("2d");
      canvas.fillStyle = getComputedStyle(document.body).backgroundColor || getComputedStyle(document.documentElement).backgroundColor;
      canvas.fillRect(0, 0, 1, 1);
      return Math.max(...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3));
    });
    assert.ok(light < 80, `the background is ${light} of 255`);
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("a session that ended elsewhere leads back to the log-in", async (t) => {
    const page = await openPage(t, browser, { expected: /WebSocket connection to/ });
    await logIn(page, lockstep);
    await page.context().clearCookies();
    await page.getByRole("navigation").getByRole("link", { name: "Rules and alerts" }).click();
    await page.getByLabel("Token").waitFor();
    assert.equal(await page.title(), "Log in · Lockstep");
  });

  await t.test("logging out ends the session", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("Token").waitFor();
    await page.reload();
    await page.getByLabel("Token").waitFor();
  });

  await t.test("a page of another version loads itself anew, once", async (t) => {
    const page = await openPage(t, browser);
    let loads = 0;
    let upgraded = false;
    page.on("load", () => (loads += 1));
    await page.routeWebSocket("**/api/stream", (socket) => {
      const server = socket.connectToServer();
      const first = !upgraded;
      server.onMessage((message) => socket.send(!first ? message : message.replace(/("type":"welcome".*"version":)"[^"]*"/, '$1"99.0.0"')));
      upgraded = true;
    });
    await logIn(page, lockstep);
    await waitFor("the page was loaded twice", 15_000, () => loads === 2);
    await page.getByTestId("connection").getByText("live").waitFor();
    assert.equal(loads, 2);
  });

  await t.test("a stream that has fallen silent is opened anew", async (t) => {
    const page = await openPage(t, browser);
    await page.clock.install();
    let silent = false;
    let streams = 0;
    await page.routeWebSocket("**/api/stream", (socket) => {
      const mine = (streams += 1);
      const server = socket.connectToServer();
      server.onMessage((message) => (silent && mine === 1 ? undefined : socket.send(message)));
    });
    await logIn(page, lockstep);
    await page.getByTestId("gpu-cell").first().waitFor();
    silent = true;
    await page.clock.fastForward("00:25");
    await waitFor("a second stream is opened", 15_000, async () => {
      // The pause before it passes in the page's own time.
      await page.clock.fastForward("00:01");
      return streams > 1;
    });
    await page.getByTestId("connection").getByText("live").waitFor();
  });

  await t.test("a program that cannot be loaded offers to try again", async (t) => {
    const page = await openPage(t, browser, { expected: /web_bg\.wasm|ERR_FAILED|Failed to (fetch|load)/ });
    // The page tells of it by itself; that the error also reaches the console is right.
    page.removeAllListeners("pageerror");
    await page.route("**/web_bg.wasm", (route) => route.abort());
    await page.goto(lockstep.url);
    await page.getByRole("alert").getByText("The dashboard has failed").waitFor();
    await page.unroute("**/web_bg.wasm");
    await page.getByRole("link", { name: "Load it anew" }).click();
    await page.getByLabel("Token").waitFor();
  });

  await t.test("unknown addresses and unknown runs say so", async (t) => {
    const page = await openPage(t, browser);
    await logIn(page, lockstep);
    await page.goto(`${lockstep.url}/nowhere`);
    await page.getByRole("heading", { name: "There is no such page" }).waitFor();
    await page.goto(`${lockstep.url}/runs/no-such-run`);
    await page.getByRole("alert").filter({ hasText: "no-such-run" }).waitFor();
  });
});
