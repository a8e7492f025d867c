// A new run: the form and the TOML are two views of one specification, which the collector checks while it is typed.

import assert from "node:assert/strict";
import test from "node:test";

import { SHOWN_MS, accessibilityFaults, openAt, openPage, picture, startBrowser, startLockstep, waitFor } from "./harness.mjs";

const SECRET = "hf_0123456789abcdef";
const CHECK = "/api/runs/check";
const PHONE = { width: 390, height: 844 };

test("a new run", async (t) => {
  // Runs request two nodes, so they wait for the second one and start no process.
  const lockstep = await startLockstep(t);
  const browser = await startBrowser(t);
  const open = async (page) => {
    await openAt(page, lockstep, "/runs/new");
    await checked(page);
  };

  await t.test("all kinds of fields survive a change of the view, and reach the run; a secret is only in the last request", async (t) => {
    const page = await openPage(t, browser);
    const requests = [];
    page.on("request", (request) => requests.push({ path: new URL(request.url()).pathname, url: request.url(), body: request.postData() ?? "" }));
    await open(page);
    for (const section of ["Program", "Place", "Checkpoints", "Checks"]) await page.getByTestId(`more-${section}`).locator("summary").click();
    await fill(page, {
      name: "vision",
      nodes: "2",
      max_restarts: "3",
      "git.repository": "https://example.org/team/train.git",
      "git.revision": "main",
      "container.image": "team/train:24",
      "container.mounts": "/datasets:/data:ro\n/scratch",
      env: 'NCCL_DEBUG=INFO\nTEXT="two\\nlines"',
      secrets: "HF_TOKEN",
      checkpoint_dir: "/checkpoints/vision",
      "keep_checkpoints.last": "3",
      "preflight_bandwidth.seconds": "0.5",
      labels: "team=vision",
    });
    await byId(page, "container.runtime").selectOption("podman");
    await byId(page, "keep_checkpoints.best").check();
    await page.getByTestId("mistake").getByText("HF_TOKEN: has no value").waitFor();
    await page.getByLabel("Value of HF_TOKEN").fill(SECRET);
    await page.getByTestId("knobs").locator("summary").click();
    await change(page, "set.lr", "1e-3");
    await change(page, "set.num_workers", "4");
    assert.equal(await byId(page, "set").inputValue(), "steps=200\nlr=1e-3\nnum_workers=4", "the fields and the text are the same settings");
    await checked(page);
    await page.getByTestId("error-summary").waitFor({ state: "detached" });
    assert.deepEqual(await accessibilityFaults(page), []);
    await picture(page, "new-run");

    await page.getByTestId("view-toml").click();
    const toml = page.getByTestId("toml");
    const text = await toml.inputValue();
    for (const part of ['name = "vision"', "[git]", '[container]\nimage = "team/train:24"', 'runtime = "podman"', 'HF_TOKEN = "[redacted]"', 'num_workers = "4"', "last = 3"]) {
      assert.ok(text.includes(part), `${part} is not in:\n${text}`);
    }
    assert.ok(!(await page.content()).includes(SECRET));
    assert.deepEqual(await accessibilityFaults(page), []);

    const problems = page.getByTestId("error-summary");
    await toml.fill(text.replace("nodes = 2", "nodes = two"));
    await problems.getByText(/^Line \d+, column \d+/).waitFor();
    await page.getByTestId("view-form").click();
    await page.getByRole("alert").getByText("Nothing is lost").waitFor();
    assert.equal(await toml.inputValue(), text.replace("nodes = 2", "nodes = two"));
    await toml.fill(text.replace("nodes = 2", "nodez = 2"));
    await problems.getByText("unknown field `nodez`").waitFor();
    await toml.fill(`# Checked by hand.\n${text.replace("nodes = 2", "nodes = 2\nstall_timeout_s = 600").replace("max_restarts = 3", "max_restarts = 4")}`);
    await problems.waitFor({ state: "detached" });

    await page.getByTestId("view-form").click();
    assert.equal(await byId(page, "max_restarts").inputValue(), "4");
    assert.equal(await byId(page, "stall_timeout_s").inputValue(), "600");
    assert.equal(await byId(page, "env").inputValue(), 'NCCL_DEBUG=INFO\nTEXT="two\\nlines"');
    assert.equal(await page.getByLabel("Value of HF_TOKEN").inputValue(), SECRET);
    await page.getByTestId("view-toml").click();
    assert.match(await toml.inputValue(), /^# Checked by hand\./, "the text keeps its comments while the form does not change");
    await page.getByTestId("view-form").click();
    await byId(page, "nodes").fill("0");
    await problems.getByText("must be from 1 to 1024").waitFor();
    assert.equal(await page.getByTestId("submit-run").isEnabled(), false);
    await byId(page, "nodes").fill("2");
    await problems.waitFor({ state: "detached" });
    await page.getByTestId("submit-run").click();
    await page.waitForURL(/\/runs\/vision-/);

    const run = await lockstep.call("GET", `/api/runs/${new URL(page.url()).pathname.split("/").at(-1)}`);
    const { git, container, env, set, secrets, checkpoint_dir, keep_checkpoints, max_restarts, stall_timeout_s, preflight_bandwidth, labels } = run.spec;
    assert.deepEqual(
      { git, container, env, set, secrets, checkpoint_dir, keep_checkpoints, max_restarts, stall_timeout_s, preflight_bandwidth, labels },
      {
        git: { repository: "https://example.org/team/train.git", revision: "main" },
        container: { image: "team/train:24", runtime: "podman", mounts: ["/datasets:/data:ro", "/scratch"] },
        env: { NCCL_DEBUG: "INFO", TEXT: "two\nlines" },
        set: { steps: "200", lr: "1e-3", num_workers: "4" },
        secrets: { HF_TOKEN: "[redacted]" },
        checkpoint_dir: "/checkpoints/vision",
        keep_checkpoints: { last: 3, best: true },
        max_restarts: 4,
        stall_timeout_s: 600,
        preflight_bandwidth: { seconds: 0.5 },
        labels: { team: "vision" },
      },
    );
    const holding = requests.filter(({ url, body }) => url.includes(SECRET) || body.includes(SECRET));
    assert.deepEqual(holding.map(({ path }) => path), ["/api/runs"]);
    assert.ok(requests.some(({ path }) => path === CHECK));
    const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
    assert.ok(!stored.includes(SECRET));
  });

  await t.test("what is typed while the view changes does not stop the change, and is kept", async (t) => {
    const page = await openPage(t, browser);
    await open(page);
    const held = [];
    let holds = true;
    await page.route(`**${CHECK}`, async (route) => {
      if (holds) await new Promise((release) => held.push(release));
      await route.fallback();
    });
    const whileChecked = async (view, type) => {
      holds = true;
      await page.getByTestId(view).click();
      await waitFor("the change of the view is checked", SHOWN_MS, () => held.length > 0);
      await type();
      holds = false;
      held.splice(0).forEach((release) => release());
    };
    await whileChecked("view-toml", () => byId(page, "name").fill("typed-in-the-form"));
    const toml = page.getByTestId("toml");
    await toml.waitFor();
    const text = await toml.inputValue();
    assert.match(text, /^name = "typed-in-the-form"$/m);
    await whileChecked("view-form", () => toml.fill(text.replace("typed-in-the-form", "typed-in-the-text")));
    await byId(page, "name").waitFor();
    assert.equal(await byId(page, "name").inputValue(), "typed-in-the-text");
  });

  await t.test("the value of a secret in the text is refused, and the text stays", async (t) => {
    const page = await openPage(t, browser);
    await open(page);
    await page.getByTestId("view-toml").click();
    const text = `recipe = "ddp"\n[secrets]\nHF_TOKEN = "${SECRET}"\n`;
    await page.getByTestId("toml").fill(text);
    await page.getByTestId("error-summary").getByText(/^Line 3, column 1 \(secrets\.HF_TOKEN\)/).waitFor();
    assert.equal(await page.getByTestId("submit-run").isEnabled(), false);
    assert.equal(await page.getByTestId("toml").inputValue(), text);
  });

  await t.test("the settings and the memory plan are those of the program", async (t) => {
    const page = await openPage(t, browser);
    await open(page);
    const plan = page.getByTestId("memory-plan");
    await plan.getByText("fits").waitFor();
    await byId(page, "recipe").selectOption("fsdp");
    await byId(page, "set.sharding").selectOption("grad-op");
    assert.equal(await byId(page, "set").inputValue(), "steps=200\nsharding=grad-op");
    await byId(page, "set").fill("width=16000\nlayers=96");
    await plan.getByText("does not fit").waitFor();
    assert.equal(await byId(page, "set.width").inputValue(), "16000");
    await byId(page, "recipe").selectOption({ label: "your own script" });
    await byId(page, "script").fill("/srv/train.py");
    await plan.getByText("the model of a script is not known").waitFor();
    await byId(page, "set.lr").waitFor({ state: "detached" });
    assert.equal(await byId(page, "set").inputValue(), "", "settings of recipes are none of scripts");
    await byId(page, "recipe").selectOption("ddp");
    assert.equal(await byId(page, "set").inputValue(), "width=16000\nlayers=96");
  });

  await t.test("the placement is that of now, or the reason why the run would wait", async (t) => {
    const page = await openPage(t, browser);
    await open(page);
    const [{ name }] = await lockstep.call("GET", "/api/nodes");
    const placement = page.getByTestId("placement");
    // Its GPUs are simulated, so the ranks train on the CPU.
    await placement.getByText(/^Submitted at [\d:]+, the run would get these nodes:/).waitFor();
    assert.deepEqual(await placement.locator("li").allInnerTexts(), [`${name}: processes: 2`]);
    await byId(page, "nodes").fill("2");
    await placement.getByText(/the run would wait for nodes: waits for 2 nodes: 1 are connected/).waitFor();
    assert.deepEqual(await accessibilityFaults(page), []);
    await byId(page, "nodes").fill("0");
    await page.getByTestId("error-summary").getByText(/nodes/i).first().waitFor();
    await placement.waitFor({ state: "detached" });
  });

  await t.test("on a wide screen what follows from the fields is beside them and stays in view, and the inputs of a row are at one height", async (t) => {
    const page = await openPage(t, browser);
    await open(page);
    const box = (locator) => locator.boundingBox();
    const [preview, plan, start] = ["toml-preview", "memory-plan", "submit-run"].map((id) => page.getByTestId(id));
    await byId(page, "name").fill("wide");
    await preview.getByText('name = "wide"').waitFor();
    const settings = await box(byId(page, "set"));
    for (const beside of [plan, preview, start]) assert.ok((await box(beside)).x > settings.x + settings.width);
    assert.deepEqual(await accessibilityFaults(page), []);

    await page.getByTestId("more-Place").locator("summary").click();
    const label = (id) => page.locator(`label[for=${id}]`);
    const [long, short] = await Promise.all([box(label("python")), box(label("backend"))]);
    assert.ok(long.height > short.height, "the hint of one field has two lines");
    const [python, backend] = await Promise.all([box(byId(page, "python")), box(byId(page, "backend"))]);
    assert.ok(backend.x > python.x + python.width && Math.abs(python.y - backend.y) < 1, JSON.stringify([python, backend]));
    await picture(page, "new-run-wide");

    await byId(page, "labels").scrollIntoViewIfNeeded();
    assert.ok((await page.evaluate(() => scrollY)) > 100);
    for (const shown of [plan, start]) {
      const { y, height } = await box(shown);
      assert.ok(y >= 0 && y + height <= 900, `${y} ${height}`);
    }

    await page.getByTestId("view-toml").click();
    await page.getByTestId("toml").waitFor();
    await preview.waitFor({ state: "detached" });
    await page.getByTestId("view-form").click();
    await preview.waitFor();
    await page.setViewportSize({ width: 1024, height: 900 });
    await preview.waitFor({ state: "hidden" });
    const [labels, below] = await Promise.all([box(byId(page, "labels")), box(plan)]);
    assert.ok(below.y > labels.y + labels.height, "on a narrow screen the plan is below the form");
  });

  await t.test("an error leads to its field, also with the keyboard, and on a phone nothing is cut off", async (t) => {
    const page = await openPage(t, browser, PHONE);
    await open(page);
    await byId(page, "env").fill("RANK=0");
    const link = page.getByTestId("error-summary").getByRole("button", { name: /Variables RANK/ });
    await link.focus();
    await page.keyboard.press("Enter");
    await waitFor("the field has the focus", SHOWN_MS, () => page.evaluate(() => document.activeElement?.id === "env"));
    await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
    const beyond = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.equal(await beyond(), 0);
    assert.deepEqual(await accessibilityFaults(page), []);
    await page.getByTestId("view-toml").click();
    await page.getByTestId("toml").waitFor();
    assert.equal(await beyond(), 0);
  });

  await t.test("in Chinese the form has no faults", async (t) => {
    const page = await openPage(t, browser, { locale: "zh-CN" });
    await page.goto(`${lockstep.url}/?lang=zh`);
    await page.getByLabel("令牌").fill(lockstep.token);
    await page.getByRole("button", { name: "登录" }).click();
    await page.getByTestId("connection").waitFor();
    await open(page);
    await page.getByRole("heading", { name: "环境变量与密钥" }).waitFor();
    assert.deepEqual(await accessibilityFaults(page), []);
  });
});

const byId = (page, id) => page.locator(`[id="${id}"]`);

async function fill(page, values) {
  for (const [name, value] of Object.entries(values)) await page.locator(`[name="${name}"]`).fill(value);
}

/** Types a setting and leaves its field. */
async function change(page, id, value) {
  await byId(page, id).fill(value);
  await byId(page, id).blur();
}

/** Waits for the answer to the check of what was typed last. */
const checked = (page) => page.getByTestId("memory-plan").locator("p").first().waitFor();
