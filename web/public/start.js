// Loads the dashboard. The content security policy allows no inline scripts.
import init from "/web.js";

// Copies a text. `navigator.clipboard` exists only over HTTPS.
globalThis.lockstepCopy = (text) => {
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
};

// The buttons that the palette can press, by name: those of the header that change the view, those of the page that ask before they do
// anything (their text ends with "…"), and the one that zooms out. A name that two buttons have says nothing, so it is left out.
const buttons = () => {
  const named = new Map();
  for (const button of document.querySelectorAll("header button:not([title]), main button:enabled")) {
    const text = button.innerText.trim();
    const isSafe = !button.closest("main") || text.endsWith("…") || button.dataset.testid === "unzoom";
    if (!isSafe || !button.checkVisibility?.()) continue;
    const name = button.getAttribute("aria-label") ?? text;
    named.set(name, named.has(name) ? undefined : button);
  }
  return named;
};
globalThis.lockstepActions = () => {
  const named = buttons();
  return [...named.keys()].filter((name) => named.get(name));
};
globalThis.lockstepAct = (name) => buttons().get(name)?.click();

// Translates a text; src/language.rs sets the translations.
globalThis.lockstepText = (english) => globalThis.lockstepTexts?.[english] ?? english;

const addScript = (src) =>
  new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.onload = resolve;
    script.onerror = () => {
      script.remove();
      reject(new Error(`cannot load ${src}`));
    };
    script.src = src;
    document.head.append(script);
  });

// Loads charts and the map of ranks once. After an error, the next call tries again.
let charts;
globalThis.lockstepLoadCharts = () => {
  charts ??= addScript("/uplot.js")
    .then(() => import("/legend.js"))
    .then(() => import("/map.js"))
    .then(() => import("/chart.js"))
    .catch((error) => {
      charts = undefined;
      console.error(error);
      throw error;
    });
  return charts;
};

// On a wall display: no controls, large type, and the screen stays on.
if (new URLSearchParams(location.search).get("wall") === "1") {
  document.documentElement.classList.add("wall");
  const stayAwake = () => document.visibilityState === "visible" && navigator.wakeLock?.request("screen").catch(() => {});
  document.addEventListener("visibilitychange", stayAwake);
  stayAwake();
}

try {
  await init({ module_or_path: "/web_bg.wasm" });
} catch (error) {
  // An exception of the program also ends here; the banner is shown already.
  document.getElementById("crashed").hidden = false;
  document.getElementById("loading")?.remove();
  throw error;
}
