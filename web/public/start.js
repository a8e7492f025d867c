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
