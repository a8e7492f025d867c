// Loads the dashboard. A file of its own because the page's content policy allows no script inside the page.
import init from "/web.js";

// Puts a text where it can be pasted from. The old way: the new one is only there over HTTPS.
globalThis.lockstepCopy = (text) => {
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
};

try {
  await init({ module_or_path: "/web_bg.wasm" });
} catch (error) {
  // An exception of the program itself also ends here, and has shown the banner already.
  document.getElementById("crashed").hidden = false;
  document.getElementById("loading")?.remove();
  throw error;
}
