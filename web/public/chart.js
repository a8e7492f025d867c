// Time-series charts: a thin layer over uPlot for src/chart.rs, which holds the data and calls set() with whole columns.

const HEIGHT = 200;
// The height of a small chart, which has one line and no legend.
const SMALL_HEIGHT = 110;
// The charts of a page share one cursor and one zoom.
const SYNC = "lockstep";
// Colours of lines, readable on a light and on a dark page, also for colour-blind people. Colours of states are never used for lines.
const LIGHT = ["#0072b2", "#b85000", "#00785a", "#a34e80", "#5b5bd6", "#8a6d00", "#006e8a", "#4a4a4a"];
const DARK = ["#56b4e9", "#ff9e57", "#3fc79a", "#e79ac4", "#a9a6ff", "#f0e442", "#5fd7e0", "#c9d1db"];
// From the fifth line on, lines are dashed, except those whose name ends with a number.
const DASHED_FROM = 4;
const DASH = [6, 3];
const CRITICAL = { light: "#b42318", dark: "#ff8f85" };
const GREY = "rgba(128,128,128,0.25)";
const FAINT = "rgba(128,128,128,0.12)";
// A spike is one pixel wide: only its outline is visible.
const OUTLINE = "rgba(128,128,128,0.65)";
const DAY_S = 86_400;
const MINUTE_S = 60;
// A mark whose text begins with one of these symbols is a thin line with only the symbol, because there may be many. The pointer shows its text.
const THIN = /^[▲◆●▾]/;
// Maximum distance in pixels between the pointer and a mark whose text is shown.
const ON_MARK = 4;
// Charts that are farther outside the window are not drawn.
const NEAR = "600px";

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

const bytes = (value) => {
  for (const [factor, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (Math.abs(value) >= factor) return `${+(value / factor).toPrecision(3)} ${unit}`;
  }
  return `${precise(value)} B`;
};

const UNITS = {
  ratio: (value) => `${precise(value * 100)} %`,
  seconds,
  bytes,
  celsius: (value) => `${precise(value)} °C`,
  watts: (value) => `${scaled(value)} W`,
  hertz: (value) => `${scaled(value)}Hz`,
  plain: scaled,
};

// Returns the time in the time zone of the page, which is UTC if `lockstepUtc` is set. Only the local fields of the result are right.
const zoned = (seconds) => {
  const at = new Date(seconds * 1e3);
  return globalThis.lockstepUtc ? new Date(at.getTime() + at.getTimezoneOffset() * 60e3) : at;
};

// 24-hour times, with seconds or the date only if the distance of ticks needs them.
const timeOfDay = (_, ticks, __, ___, distance) =>
  ticks.map((tick) => {
    const at = zoned(tick);
    const two = (number) => String(number).padStart(2, "0");
    if (distance >= DAY_S) return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
    return distance >= MINUTE_S ? minutes : `${minutes}:${two(at.getSeconds())}`;
  });

// The distances of ticks on the y axis of counts and states: a chart of 0 and 1 has no tick 0.5.
const WHOLE = Array.from({ length: 18 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

// Draws one chart per frame, so that a page with many charts stays responsive.
const queue = new Set();
const drawNext = () => {
  const [next] = queue;
  if (!next) return;
  queue.delete(next);
  // Before the chart is drawn: an error in one chart must not stop the others.
  if (queue.size > 0) requestAnimationFrame(drawNext);
  next.flush();
};
const schedule = (chart) => {
  if (queue.size === 0) requestAnimationFrame(drawNext);
  queue.add(chart);
};

const charts = new Set();

// Whether the period of the page ends now. Only then is the last value of a line that has ended marked as old.
let isLive = false;

// The period in seconds on which the user zoomed last, `[start, end]`; empty for the whole period. A page with the period in its address reads
// it at the event `lockstep-zoom`. Charts that zoom together send one event, with the period of the first chart.
let chosen = null;
const choose = (period) => {
  if (chosen) return;
  chosen = period;
  setTimeout(() => {
    dispatchEvent(new Event("lockstep-zoom"));
    chosen = null;
  });
};

class Chart {
  constructor(element, { unit, small, axis }) {
    this.element = element;
    this.small = small;
    // Whether the next data belongs to another period, and is shown without the zoom.
    this.isOther = false;
    // "time" or "steps".
    this.axis = axis;
    this.unit = unit;
    this.format = UNITS[unit] ?? scaled;
    this.lines = { names: [], roles: [], times: [], columns: [], notFinite: [] };
    this.plot = null;
    this.marks = [];
    this.levels = [];
    this.isNear = false;
    this.legend = small ? null : new window.LockstepLegend(element, (name) => this.isolate(name), axis === "steps");
    this.isolated = null;
    this.ended = new AbortController();
    this.observer = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.observer.observe(element);
    // A busy page gets several entries at once, the newest last.
    this.near = new IntersectionObserver((entries) => this.moved(entries.at(-1).isIntersecting), { rootMargin: NEAR });
    this.near.observe(element);
    this.recolour = () => this.redraw();
    dark.addEventListener("change", this.recolour);
    element.addEventListener("dblclick", ({ target }) => target.closest(".u-over") && this.chose([]), { signal: this.ended.signal });
    if (!small) this.listenToKeys();
    charts.add(this);
  }

  size() {
    return { width: Math.max(this.element.clientWidth, 200), height: this.small ? SMALL_HEIGHT : HEIGHT };
  }

  // Sets the marks: times, each with a text.
  mark(times, words) {
    this.marks = Array.from(times, (time, n) => [time, words[n]]);
    this.plot?.redraw(false);
  }

  // Sets the horizontal reference lines: values, each with a text.
  level(values, words) {
    this.levels = Array.from(values, (value, n) => [value, words[n]]);
    this.redraw();
  }

  // times: seconds (or steps); columns: one Float64Array per name, NaN where there is no value; roles: how each is drawn;
  // notFinite: times at which a value was NaN or infinite.
  set(names, roles, times, columns, notFinite) {
    this.lines = { names, roles, times, columns, notFinite };
    this.isStale = true;
    if (this.isNear) schedule(this);
  }

  moved(isNear) {
    this.isNear = isNear;
    if (isNear && this.isStale) schedule(this);
  }

  flush() {
    if (!this.isStale || !this.element.isConnected) return;
    this.isStale = false;
    const { names, roles } = this.lines;
    const data = this.data();
    const same = this.plot && names.join("\n") === this.drawnNames && roles.join() === this.drawnRoles && this.isWhole() === this.drawnWhole;
    if (!same) this.draw(data);
    else this.put(data);
    this.legend?.update(this.lines, (name, n) => this.colour(name, n), this.format, isLive && this.axis !== "steps");
  }

  put(data) {
    const zoom = this.isOther ? null : this.zoom();
    this.isOther = false;
    if (!zoom) return this.plot.setData(data);
    // Keep the zoom when new data arrives.
    this.plot.batch(() => {
      this.plot.setData(data, false);
      this.plot.setScale("x", zoom);
    });
  }

  // Returns the data for uPlot: gaps are null, and each area is added to the one below it.
  data() {
    const { times, columns, roles } = this.lines;
    let below = null;
    const drawn = columns.map((column, n) => {
      if (roles[n] !== "area") return Array.from(column, (value) => (Number.isNaN(value) ? null : value));
      below = Array.from(column, (value, at) => (below?.[at] == null ? (Number.isNaN(value) ? null : value) : below[at] + (Number.isNaN(value) ? 0 : value)));
      return below;
    });
    return [times, ...drawn];
  }

  // Returns the part of the x axis on which the user zoomed in; null if all of it is shown.
  zoom() {
    const { min, max } = this.plot.scales.x;
    const times = this.plot.data[0];
    const whole = times.length < 2 || min == null || (min <= times[0] && max >= times[times.length - 1]);
    return whole ? null : { min, max };
  }

  chose(period) {
    if (this.axis !== "steps") choose(period);
  }

  redraw() {
    if (!this.plot) return;
    this.drawnNames = null;
    this.isStale = true;
    schedule(this);
  }

  draw(data) {
    const { names, roles } = this.lines;
    this.drawnNames = names.join("\n");
    this.drawnRoles = roles.join();
    this.drawnWhole = this.isWhole();
    this.plot?.destroy();
    this.plot = names.length > 0 ? new window.uPlot(this.options(names, roles), data, this.element) : null;
    // uPlot appends its element: the legend must follow it.
    if (this.legend) this.element.append(this.legend.element);
    if (this.isolated && names.includes(this.isolated)) this.isolate(this.isolated);
  }

  // Shows only the line with this name and its extremes; all lines if the name is null.
  isolate(name) {
    const { names, roles } = this.lines;
    this.isolated = name;
    const isShown = (one, role) => role !== RANKS && (name === null ? !isHidden(role) : one === name);
    this.plot?.batch(() => names.forEach((one, n) => this.plot.setSeries(n + 1, { show: isShown(one, roles[n]) }, false)));
  }

  // A rank has the same colour on each chart; the colour of another line depends on its place.
  colour(name, n) {
    const palette = dark.matches ? DARK : LIGHT;
    const number = /^rank (\d+)$/.exec(name)?.[1];
    return palette[Number(number ?? n) % palette.length];
  }

  // Returns the colour of the first line with this name: extremes follow their line and have its name.
  colourOf(name) {
    return this.colour(name, this.lines.names.indexOf(name));
  }

  series(label, role, n) {
    const stroke = this.colour(label, n);
    const base = { label, stroke, width: 1.5, spanGaps: this.axis === "steps", points: { show: this.small ? false : undefined, size: 4 } };
    const text = getComputedStyle(this.element).color;
    switch (role) {
      case "bold":
        return { ...base, width: 3 };
      case "low":
      case "high":
        return { ...base, stroke: GREY, width: 1, points: { show: false } };
      case "lowest":
      case "highest":
        return { ...base, stroke: OUTLINE, width: 1, points: { show: false } };
      case "least":
      case "greatest":
      case "hidden least":
      case "hidden greatest":
        return { ...base, stroke: `${this.colourOf(label)}90`, width: 1, points: { show: false }, show: !isHidden(role) };
      case RANKS:
        return { ...base, show: false };
      case "median":
        return { ...base, stroke: text, width: 1, dash: DASH, points: { show: false } };
      case "area":
        return { ...base, width: 1, points: { show: false }, ...(n === this.lines.roles.indexOf("area") && { fill: `${stroke}b0` }) };
      default:
        return { ...base, ...(n >= DASHED_FROM && !/\d$/.test(label) && { dash: DASH }) };
    }
  }

  // Returns the filled bands: between the low and the high line, between extremes, and between an area and the one below it.
  bands(names, roles) {
    const [low, high] = [roles.indexOf("low"), roles.indexOf("high")];
    const bands = low >= 0 && high >= 0 ? [{ series: [high + 1, low + 1], fill: "rgba(128,128,128,0.22)" }] : [];
    roles.forEach((role, n) => {
      if (role === "area" && roles[n - 1] === "area") bands.push({ series: [n + 1, n], fill: `${this.colour(names[n], n)}b0` });
      if (role === "highest") bands.push({ series: [n + 1, n], fill: FAINT });
      if (role.endsWith("greatest")) bands.push({ series: [n + 1, n], fill: `${this.colourOf(names[n])}30` });
    });
    return bands;
  }

  // Returns the range of the y axis: that of uPlot, extended to the levels. Ratios have the range 0 to 100 %, so that a small change does
  // not look large. Zeros alone have the range 0 to 1.
  height(min, max) {
    const levels = this.levels.map(([value]) => value);
    if (min == null && levels.length === 0) return [null, null];
    const low = Math.min(min ?? Infinity, ...levels);
    const high = Math.max(max ?? -Infinity, ...levels);
    if (this.unit === "ratio" && low >= 0 && high <= 1) return [0, 1];
    if (low === 0 && high === 0) return [0, 1];
    const isArea = this.lines.roles.includes("area");
    return window.uPlot.rangeNum(isArea ? Math.min(low, 0) : low, high, 0.1, true);
  }

  // Returns true if all values are whole numbers without a unit.
  isWhole() {
    return this.unit === "plain" && this.lines.columns.every((column) => column.every((value) => Number.isNaN(value) || Number.isInteger(value)));
  }

  options(names, roles) {
    const axis = { stroke: getComputedStyle(this.element).color, grid: { stroke: GREY, width: 1 }, ticks: { stroke: GREY, width: 1 } };
    const isTime = this.axis !== "steps";
    return {
      ...this.size(),
      tzDate: zoned,
      cursor: { sync: { key: isTime ? SYNC : `${SYNC} ${this.axis}` }, drag: { x: true, y: false } },
      legend: { show: false },
      hooks: {
        draw: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.pointed(plot)],
        // uPlot calls this before it changes the scale.
        setSelect: [({ select, posToVal }) => this.chose([posToVal(select.left, "x"), posToVal(select.left + select.width, "x")])],
      },
      // At the right, half of the last time needs this space.
      padding: [null, 28, null, null],
      scales: { x: { time: isTime }, y: { range: (_, min, max) => this.height(min, max) } },
      axes: [
        // A time with seconds is about 60 pixels wide.
        { ...axis, space: 80, size: this.small ? 24 : 36, values: isTime ? timeOfDay : (_, ticks) => ticks.map((tick) => scaled(tick)) },
        { ...axis, ...(this.small && { space: 20 }), ...(this.drawnWhole && { incrs: WHOLE }), size: this.small ? 56 : 68, values: (_, ticks) => ticks.map((tick) => this.format(tick)) },
      ],
      bands: this.bands(names, roles),
      series: [{}, ...names.map((label, n) => this.series(label, roles[n], n))],
    };
  }

  pointed(plot) {
    const { cursor, over } = plot;
    this.legend?.point(cursor.idx);
    const isOn = ([time]) => cursor.left >= 0 && Math.abs(plot.valToPos(time, "x") - cursor.left) < ON_MARK;
    const words = this.marks.filter(isOn).map(([, word]) => word).join("\n");
    if (over.title !== words) over.title = words;
  }

  drawMarks(plot) {
    const { ctx, bbox, valToPos, scales } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px sans-serif`;
    ctx.fillStyle = ctx.strokeStyle = getComputedStyle(this.element).color;
    ctx.lineWidth = ratio;
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    const inside = (time) => scales.x.min != null && time >= scales.x.min && time <= scales.x.max;
    for (const [time, word] of this.marks.filter(([time]) => inside(time))) {
      const x = Math.round(valToPos(time, "x", true));
      const isThin = THIN.test(word);
      ctx.globalAlpha = isThin ? 0.5 : 1;
      line(ctx, [x, bbox.top], [x, bbox.top + bbox.height]);
      ctx.globalAlpha = 1;
      const label = isThin ? word[0] : word;
      // A label that does not fit on the right of its line is on the left.
      const isLeft = x + 3 * ratio + ctx.measureText(label).width > ctx.canvas.width;
      ctx.textAlign = isLeft ? "right" : "left";
      ctx.fillText(label, x + (isLeft ? -3 : 3) * ratio, bbox.top + (isThin ? 22 : 11) * ratio);
    }
    ctx.textAlign = "left";
    ctx.fillStyle = ctx.strokeStyle = dark.matches ? CRITICAL.dark : CRITICAL.light;
    for (const [value, word] of this.levels) {
      const y = Math.round(valToPos(value, "y", true));
      line(ctx, [bbox.left, y], [bbox.left + bbox.width, y]);
      ctx.fillText(word, bbox.left + 3 * ratio, y - 3 * ratio);
    }
    // NaN and infinite values are red triangles on the axis.
    for (const time of Array.from(this.lines.notFinite).filter(inside)) triangle(ctx, Math.round(valToPos(time, "x", true)), bbox.top + bbox.height, 5 * ratio);
    ctx.restore();
  }

  // The keyboard can move the cursor and zoom, as the mouse can.
  listenToKeys() {
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", lockstepText("Chart. Arrow keys move the cursor, plus and minus zoom, 0 shows everything."));
    const press = (event) => {
      if (event.target !== this.element || !this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
      const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const factor = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity }[event.key];
      if (steps) this.step(steps);
      else if (factor) {
        charts.forEach((chart) => chart.scale(factor, this));
        // Scales change at the end of this task.
        queueMicrotask(() => {
          const zoom = this.plot && this.zoom();
          this.chose(zoom ? [zoom.min, zoom.max] : []);
        });
      } else return;
      event.preventDefault();
    };
    this.element.addEventListener("keydown", press, { signal: this.ended.signal });
  }

  step(steps) {
    const times = this.plot.data[0];
    const index = Math.min(Math.max((this.plot.cursor.idx ?? times.length - 1) + steps, 0), times.length - 1);
    const left = this.plot.valToPos(times[index], "x");
    this.plot.setCursor({ left, top: this.plot.over.clientHeight / 2 });
  }

  // Zooms to `factor` times the range of `leader`, around the cursor of `leader`.
  scale(factor, leader) {
    if (!this.plot || this.axis !== leader.axis) return;
    const times = this.plot.data[0];
    const { min, max } = leader.plot.scales.x;
    const [first, last] = [times[0], times[times.length - 1]];
    const centre = leader.plot.cursor.idx == null ? (min + max) / 2 : leader.plot.data[0][leader.plot.cursor.idx];
    const half = ((max - min) * factor) / 2;
    this.plot.setScale("x", { min: Math.max(centre - half, first), max: Math.min(centre + half, last) });
  }

  // Restores the element, because the page may reuse it for another chart.
  destroy() {
    this.ended.abort();
    this.legend?.element.remove();
    if (!this.small) ["tabindex", "role", "aria-label"].forEach((name) => this.element.removeAttribute(name));
    charts.delete(this);
    queue.delete(this);
    dark.removeEventListener("change", this.recolour);
    this.observer.disconnect();
    this.near.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }
}

const isHidden = (role) => role.startsWith("hidden");
// Numbers of ranks, which only the legend shows.
const RANKS = "hidden ranks";

const line = (ctx, [fromX, fromY], [toX, toY]) => {
  ctx.beginPath();
  ctx.moveTo(fromX, fromY);
  ctx.lineTo(toX, toY);
  ctx.stroke();
};

const triangle = (ctx, x, bottom, size) => {
  ctx.beginPath();
  ctx.moveTo(x - size, bottom);
  ctx.lineTo(x + size, bottom);
  ctx.lineTo(x, bottom - 2 * size);
  ctx.fill();
};

window.lockstepChart = {
  create: (element, unit, small, axis) => new Chart(element, { unit, small, axis }),
  set: (chart, names, roles, times, columns, notFinite) => chart.set(names, roles, times, columns, notFinite),
  mark: (chart, times, words) => chart.mark(times, words),
  level: (chart, values, words) => chart.level(values, words),
  destroy: (chart) => chart.destroy(),
  // During `lockstep-zoom`: the start and the end of the period; empty for the whole period.
  chosen: () => Float64Array.from(chosen ?? []),
  // Call this when the page shows another period. `live`: the period ends now.
  period: (live) => {
    isLive = live;
    charts.forEach((chart) => (chart.isOther = chart.axis !== "steps"));
  },
};
