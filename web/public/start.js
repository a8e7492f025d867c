// Loads the dashboard. A file of its own because the page's content policy allows no script inside the page.
import init from "/web.js";

await init({ module_or_path: "/web_bg.wasm" });
