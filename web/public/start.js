// Loads the dashboard. A file of its own because the page's content policy allows no script inside the page.
import init from "/web.js";

try {
  await init({ module_or_path: "/web_bg.wasm" });
} catch (error) {
  // An exception of the program itself also ends here, and has shown the banner already.
  document.getElementById("crashed").hidden = false;
  document.getElementById("loading")?.remove();
  throw error;
}
