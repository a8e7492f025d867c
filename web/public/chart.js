// Time-series charts: a thin layer over uPlot for src/chart.rs, which holds the data and calls set() with whole columns.

const PALETTE = ["#2563eb", "#dc2626", "#16a34a", "#d97706", "#9333ea", "#0891b2", "#db2777", "#65a30d", "#64748b", "#ea580c"];
const SYNC = "lockstep";
const HEIGHT = 220;

const scaled = (value) => {
  for (const [factor, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= factor) return `${+(value / factor).toPrecision(4)} ${prefix}`;
  }
  return `${+value.toPrecision(4)}`;
};

const UNITS = {
  ratio: (value) => `${+(value * 100).toPrecision(4)} %`,
  seconds: (value) => (Math.abs(value) < 1 ? `${+(value * 1e3).toPrecision(4)} ms` : `${+value.toPrecision(4)} s`),
  bytes: (value) => `${scaled(value)}B`,
  celsius: (value) => `${+value.toPrecision(4)} °C`,
  watts: (value) => `${+value.toPrecision(4)} W`,
  plain: scaled,
};

class Chart {
  constructor(element, unit) {
    this.element = element;
    this.format = UNITS[unit] ?? scaled;
    this.names = null;
    this.plot = null;
    this.observer = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.observer.observe(element);
  }

  size() {
    return { width: Math.max(this.element.clientWidth, 200), height: HEIGHT };
  }

  // times: seconds; columns: one Float64Array a name, NaN where there is no value.
  set(names, times, columns) {
    const data = [times, ...columns.map((column) => Array.from(column, (value) => (Number.isFinite(value) ? value : null)))];
    if (this.plot && this.names.length === names.length && this.names.every((name, n) => name === names[n])) {
      this.plot.setData(data);
      return;
    }
    this.names = names;
    this.plot?.destroy();
    this.plot = new window.uPlot(this.options(names), data, this.element);
  }

  options(names) {
    const style = getComputedStyle(this.element);
    const axis = { stroke: style.color, grid: { stroke: "rgba(128,128,128,0.2)" }, ticks: { stroke: "rgba(128,128,128,0.2)" } };
    const value = (_, raw) => (raw == null ? "–" : this.format(raw));
    return {
      ...this.size(),
      cursor: { sync: { key: SYNC }, drag: { x: true, y: false } },
      legend: { live: true },
      scales: { x: { time: true } },
      axes: [axis, { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => this.format(tick)) }],
      series: [{}, ...names.map((label, n) => ({ label, value, stroke: PALETTE[n % PALETTE.length], width: 1.5, spanGaps: false }))],
    };
  }

  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }
}

window.lockstepChart = {
  create: (element, unit) => new Chart(element, unit),
  set: (chart, names, times, columns) => chart.set(names, times, columns),
  destroy: (chart) => chart.destroy(),
};
