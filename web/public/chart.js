// Time-series charts: a thin layer over uPlot for src/chart.rs, which holds the data and calls set() with whole columns.

const HEIGHT = 220;
// One of many: a line, its name above it, no room for more.
const SMALL_HEIGHT = 110;
// Charts of one page share their cursor and their zoom.
const SYNC = "lockstep";
// Told apart on white and on near-black; dark and light variants of the same ten hues.
const LIGHT = ["#2563eb", "#c2410c", "#15803d", "#9333ea", "#0e7490", "#be185d", "#a16207", "#4d7c0f", "#475569", "#dc2626"];
const DARK = ["#60a5fa", "#fb923c", "#4ade80", "#c084fc", "#22d3ee", "#f472b6", "#facc15", "#a3e635", "#cbd5e1", "#f87171"];
const DAY_S = 86_400;
const MINUTE_S = 60;

const dark = matchMedia("(prefers-color-scheme: dark)");

const precise = (value) => `${+value.toPrecision(4)}`;

const scaled = (value) => {
  if (Math.abs(value) >= 1e15) return value.toExponential(2);
  for (const [factor, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= factor) return `${precise(value / factor)} ${prefix}`;
  }
  return precise(value);
};

const seconds = (value) => {
  const size = Math.abs(value);
  if (size === 0 || size >= 1) return `${precise(value)} s`;
  return size < 1e-3 ? `${precise(value * 1e6)} µs` : `${precise(value * 1e3)} ms`;
};

// From which to which value the y axis goes: uPlot's own choice, but nothing but zeros are no reason for an axis up to 100.
const height = (_, min, max) => {
  if (min == null) return [null, null];
  return min === 0 && max === 0 ? [0, 1] : window.uPlot.rangeNum(min, max, 0.1, true);
};
const UNITS = { ratio: (value) => `${precise(value * 100)} %`, seconds, plain: scaled };

// The time as it is to be shown: `lockstepUtc` says that the viewer wants UTC. The result is only good for its local fields.
const zoned = (seconds) => {
  const at = new Date(seconds * 1e3);
  return globalThis.lockstepUtc ? new Date(at.getTime() + at.getTimezoneOffset() * 60e3) : at;
};

// 24 hours, and no more digits than the distance of ticks needs.
const timeOfDay = (_, ticks, __, ___, distance) =>
  ticks.map((tick) => {
    const at = zoned(tick);
    const two = (number) => String(number).padStart(2, "0");
    if (distance >= DAY_S) return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
    return distance >= MINUTE_S ? minutes : `${minutes}:${two(at.getSeconds())}`;
  });

class Chart {
  constructor(element, unit, small) {
    this.element = element;
    this.small = small;
    this.format = UNITS[unit] ?? scaled;
    this.names = [];
    this.plot = null;
    this.marks = [];
    this.observer = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.observer.observe(element);
    this.recolour = () => this.plot && this.draw(this.names, this.plot.data);
    dark.addEventListener("change", this.recolour);
  }

  size() {
    return { width: Math.max(this.element.clientWidth, 200), height: this.small ? SMALL_HEIGHT : HEIGHT };
  }

  // Seconds, each with a word: where something began that one should see on every chart.
  mark(times, words) {
    this.marks = Array.from(times, (time, n) => [time, words[n]]);
    this.plot?.redraw(false);
  }

  drawMarks({ ctx, bbox, valToPos, scales }) {
    ctx.save();
    ctx.fillStyle = ctx.strokeStyle = getComputedStyle(this.element).color;
    ctx.font = `${11 * devicePixelRatio}px sans-serif`;
    ctx.textAlign = "left";
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const [time, word] of this.marks) {
      if (scales.x.min == null || time < scales.x.min || time > scales.x.max) continue;
      const x = Math.round(valToPos(time, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(word, x + 3 * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
    }
    ctx.restore();
  }

  // times: seconds; columns: one Float64Array a name, NaN where there is no value.
  set(names, times, columns) {
    const data = [times, ...columns.map((column) => Array.from(column, (value) => (Number.isNaN(value) ? null : value)))];
    const same = this.plot && this.names.length === names.length && this.names.every((name, n) => name === names[n]);
    if (!same) return this.draw(names, data);
    const zoom = this.zoom();
    if (!zoom) return this.plot.setData(data);
    // Who looks closer at something keeps looking at it while new data arrives.
    this.plot.batch(() => {
      this.plot.setData(data, false);
      this.plot.setScale("x", zoom);
    });
  }

  // The part of the time axis that was chosen by dragging, if one was.
  zoom() {
    const { min, max } = this.plot.scales.x;
    const times = this.plot.data[0];
    const whole = times.length < 2 || min == null || (min <= times[0] && max >= times[times.length - 1]);
    return whole ? null : { min, max };
  }

  draw(names, data) {
    this.names = names;
    this.plot?.destroy();
    this.plot = names.length > 0 ? new window.uPlot(this.options(names), data, this.element) : null;
  }

  options(names) {
    const palette = dark.matches ? DARK : LIGHT;
    const lines = "rgba(128,128,128,0.25)";
    const axis = { stroke: getComputedStyle(this.element).color, grid: { stroke: lines, width: 1 }, ticks: { stroke: lines, width: 1 } };
    // Where the cursor points, else the newest.
    const at = (plot, n, index) => (index == null ? plot.data[n].findLast((one) => one != null) : plot.data[n][index]);
    const value = (plot, _, n, index) => {
      const raw = at(plot, n, index);
      return raw == null ? "–" : this.format(raw);
    };
    const time = (plot, _, n, index) => {
      const raw = at(plot, n, index);
      return raw == null ? "–" : zoned(raw).toLocaleTimeString("sv-SE");
    };
    return {
      ...this.size(),
      tzDate: zoned,
      cursor: { sync: { key: SYNC }, drag: { x: true, y: false } },
      legend: { live: true, show: !this.small },
      hooks: { draw: [(plot) => this.drawMarks(plot)] },
      // Room for half of the last time below the axis.
      padding: [null, 28, null, null],
      scales: { x: { time: true }, y: { range: height } },
      axes: [
        // A time with its seconds is some sixty pixels wide.
        { ...axis, space: 80, size: this.small ? 24 : 36, values: timeOfDay },
        { ...axis, ...(this.small && { space: 20 }), size: this.small ? 56 : 68, values: (_, ticks) => ticks.map((tick) => this.format(tick)) },
      ],
      series: [
        { label: "time", value: time },
        ...names.map((label, n) => ({ label, value, stroke: palette[n % palette.length], width: 1.5, spanGaps: false })),
      ],
    };
  }

  destroy() {
    dark.removeEventListener("change", this.recolour);
    this.observer.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }
}

window.lockstepChart = {
  create: (element, unit, small) => new Chart(element, unit, small),
  set: (chart, names, times, columns) => chart.set(names, times, columns),
  mark: (chart, times, words) => chart.mark(times, words),
  destroy: (chart) => chart.destroy(),
};
