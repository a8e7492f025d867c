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

// A text in the language of the page: src/language.rs sets the translations.
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

// Charts, and the map of ranks, are loaded by the first page that has some. A failed attempt is not kept: the next one starts from the beginning.
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

// The page on the wall: no controls, large type, and a screen that stays on for as long as it is looked at.
if (new URLSearchParams(location.search).get("wall") === "1") {
  document.documentElement.classList.add("wall");
  const stayAwake = () => document.visibilityState === "visible" && navigator.wakeLock?.request("screen").catch(() => {});
  document.addEventListener("visibilitychange", stayAwake);
  stayAwake();
}

try {
  await init({ module_or_path: "/web_bg.wasm" });
} catch (error) {
  // An exception of the program itself also ends here, and has shown the banner already.
  document.getElementById("crashed").hidden = false;
  document.getElementById("loading")?.remove();
  throw error;
}
