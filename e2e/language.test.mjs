// The dashboard in Simplified Chinese: chosen in the address or by the browser, remembered, and switched in the header.

import assert from "node:assert/strict";
import test from "node:test";

import { SHOWN_MS, accessibilityFaults, logIn, openPage, picture, startBrowser, startDemo, waitFor } from "./harness.mjs";

/** The demo's faults begin some seconds after its start. */
const DIAGNOSED_MS = 240_000;
const HAN = /\p{Script=Han}/u;
/** Two words of a sentence. The names and numbers in a Chinese text are not. */
const ENGLISH = /\b[a-z]{2,} [a-z]{2,}\b/i;

test("languages", async (t) => {
  const lockstep = await startDemo(t);
  const browser = await startBrowser(t);
  const page = await openPage(t, browser);
  let loads = 0;
  page.on("request", (request) => (loads += new URL(request.url()).pathname === "/zh.json" ? 1 : 0));

  await t.test("the address chooses Chinese, from the log-in on", async () => {
    await page.goto(`${lockstep.url}/?lang=zh`);
    await page.getByLabel("令牌").fill(lockstep.token);
    assert.deepEqual(await accessibilityFaults(page), []);
    await page.getByRole("button", { name: "登录" }).click();
    await isLiveInChinese(page);
    assert.match(await page.title(), /总览 · Lockstep$/);
    await page.getByTestId("needs-you").first().waitFor({ timeout: DIAGNOSED_MS });
    const headings = await page.locator("main h2").evaluateAll((all) => all.map(({ firstChild }) => firstChild.textContent.trim()));
    assert.deepEqual(headings, ["需要处理", "训练任务", "GPU", "指标"]);
    assert.match(await page.getByTestId("sentence").innerText(), HAN);
    for (const part of [page.getByTestId("sentence"), page.getByTestId("needs-you").first()]) {
      const { marked, others } = await byLanguage(part);
      assert.match(marked, ENGLISH);
      assert.doesNotMatch(marked, HAN);
      assert.match(others, HAN);
      assert.doesNotMatch(others, ENGLISH, "a screen reader would read it with a Chinese voice");
    }
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "overview-zh");
  });

  await t.test("a run and its charts are in Chinese, and the texts are loaded once", async () => {
    await page.getByTestId("runs").getByRole("link").first().click();
    await page.getByTestId("tabs").getByRole("button", { name: "概要" }).waitFor();
    const chart = page.getByTestId("chart").first();
    await chart.getByRole("heading", { name: "训练步耗时" }).waitFor();
    const head = chart.getByTestId("chart-legend").locator("thead");
    await head.waitFor({ state: "attached" });
    const columns = await head.locator("th").allTextContents();
    assert.deepEqual(columns, ["曲线", "最新值", "最小值", "最大值"]);
    await page.getByTestId("axis-as-list").click();
    const state = page.getByTestId("axis-list").getByText(/^run \S+ is running$/).first();
    assert.equal(await state.getAttribute("lang"), "en");
    assert.deepEqual(await accessibilityFaults(page), []);
    assert.equal(loads, 1);
  });

  await t.test("this browser remembers Chinese, also for the page of a diagnosis", async () => {
    await page.goto(`${lockstep.url}/diagnoses`);
    await isLiveInChinese(page);
    await page.getByTestId("diagnosis-row").first().getByRole("link").first().click();
    await page.getByTestId("incident").waitFor();
    const facts = await page.getByTestId("incident").locator("dt").allInnerTexts();
    assert.deepEqual(facts, ["问题源头", "开始时间", "置信度", "原因", "处置建议"]);
    assert.match(await page.getByTestId("how-sure").innerText(), HAN);
    for (const sentence of ["what", "what-to-do"]) assert.equal(await page.getByTestId(sentence).getAttribute("lang"), "en", sentence);
    assert.match(await page.title(), /诊断 · Lockstep$/);
    assert.deepEqual(await accessibilityFaults(page), []);
  });

  await t.test("the header switches back by keyboard, on the same page", async () => {
    await page.goto(`${lockstep.url}/rules?q=gpu&lang=zh`);
    await isLiveInChinese(page);
    await page.getByTestId("language").focus();
    await page.keyboard.press("Enter");
    await page.getByTestId("language").filter({ hasText: "中文" }).waitFor();
    assert.equal(page.url(), `${lockstep.url}/rules?q=gpu`);
    await page.getByTestId("connection").getByText("live").waitFor();
    assert.equal(await language(page), "en");
    const before = loads;
    await page.goto(lockstep.url);
    await page.getByTestId("connection").getByText("live").waitFor();
    assert.equal(loads, before, "English needs no texts");
  });

  await t.test("at first, the browser's own language is used", async (t) => {
    const page = await openPage(t, browser, { locale: "zh-CN" });
    await page.goto(lockstep.url);
    await page.getByLabel("令牌").waitFor();
    await page.getByTestId("language").click();
    await page.getByLabel("Token").waitFor();
    assert.equal(await language(page), "en");
  });

  await t.test("without its texts the page is in English", async (t) => {
    const page = await openPage(t, browser, { locale: "zh-CN", expected: /ERR_FAILED/ });
    await page.route("**/zh.json", (route) => route.abort());
    await logIn(page, lockstep);
    assert.equal(await language(page), "en");
  });

  // The overview sends requests while there is a diagnosis, and the collector ends before the browser.
  await page.close();
});

async function isLiveInChinese(page) {
  await page.getByTestId("connection").getByText("实时").waitFor();
  await waitFor("the page says that it is in Chinese", SHOWN_MS, async () => (await language(page)) === "zh-CN");
}

/** Returns the text of a part that is marked as English, and the rest. */
const byLanguage = (part) =>
  part.evaluate((element) => {
    const others = element.cloneNode(true);
    const marked = [...others.querySelectorAll("[lang=en]")];
    marked.forEach((text) => text.remove());
    return { marked: marked.map(({ textContent }) => textContent).join("\n"), others: others.textContent };
  });

const language = (page) => page.evaluate(() => document.documentElement.lang);
