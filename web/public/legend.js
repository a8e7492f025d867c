// The table below a chart: one row per line with its value at the cursor (without a cursor: its last value), its minimum and its maximum.
// If the extremes within each step are known, the minimum and the maximum include them, and the value at the cursor has them in brackets.
// If a line can be another rank at each time, the rank of the value is named. An old last value is shown with its age.
// A click on a name shows only that line; a click on the head of a column sorts the rows once. New data never reorders rows.

// Lines that have no row of their own.
const HIDDEN = new Set(["low", "high", "lowest", "highest", "least", "greatest", "hidden least", "hidden greatest", "hidden ranks"]);

// The last value of a line that has ended is older than this. The collector repeats a value for some time after its sample, so the real age
// may be higher.
const OLD_S = 10;

class LockstepLegend {
  // bySteps: the lines may have values at different steps.
  constructor(chart, isolate, bySteps) {
    this.isolate = isolate;
    this.bySteps = bySteps;
    this.isolated = null;
    this.rows = new Map();
    this.element = document.createElement("div");
    this.element.className = "chart-legend";
    this.element.dataset.testid = "chart-legend";
    const table = this.element.appendChild(document.createElement("table"));
    const head = table.createTHead().insertRow();
    const sorter = (words, hint, of, sign) => {
      const made = button(words, () => this.sort(of, sign));
      made.title = hint;
      return made;
    };
    const columns = [
      lockstepText("Line"),
      (this.head = sorter("", lockstepText("Sort by value"), ({ n }) => this.valueAt(n), -1)),
      sorter(lockstepText("Min"), lockstepText("Sort by minimum"), ({ range }) => range[0], 1),
      sorter(lockstepText("Max"), lockstepText("Sort by maximum"), ({ range }) => range[1], -1),
    ];
    this.point();
    for (const content of columns) {
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      cell.append(content);
    }
    this.body = table.createTBody();
    chart.append(this.element);
  }

  // Shows these lines; `colour` and `format` are functions of the chart. isLive: the period of the chart ends now.
  update(lines, colour, format, isLive) {
    Object.assign(this, { lines, format, isLive });
    const shown = lines.names.map((name, n) => [name, n]).filter(([, n]) => !HIDDEN.has(lines.roles[n]));
    const names = new Set(shown.map(([name]) => name));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      row.element.remove();
      this.rows.delete(name);
    }
    for (const [name, n] of shown) {
      const row = this.rows.get(name) ?? this.add(name);
      const least = this.edge(n, "least");
      const greatest = this.edge(n, "greatest");
      const range = [extremes(lines.columns[least])[0], extremes(lines.columns[greatest])[1]];
      const ranks = lines.names.findIndex((other, at) => other === name && lines.roles[at] === "hidden ranks");
      Object.assign(row, { n, range, edges: least === n ? [] : [least, greatest], ranks });
      row.swatch.style.background = lines.roles[n] === "median" ? "currentColor" : colour(name, n);
      range.forEach((value, cell) => {
        row.cells[cell + 1].textContent = value === null ? "–" : format(value);
      });
      row.element.classList.toggle("is-bold", lines.roles[n] === "bold");
    }
    this.element.hidden = shown.length === 0;
    this.point(this.index);
  }

  // Returns the place of a line's extremes; the place of the line itself if they are unknown.
  edge(n, role) {
    const { names, roles } = this.lines;
    // Extremes are last. A chart of a thousand lines has none.
    if (!roles.at(-1).endsWith("greatest")) return n;
    const at = names.findIndex((name, other) => name === names[n] && roles[other].endsWith(role));
    return at < 0 ? n : at;
  }

  add(name) {
    const element = this.body.insertRow();
    const swatch = document.createElement("span");
    swatch.className = "chart-swatch";
    const choose = button(name, () => this.choose(name));
    choose.prepend(swatch);
    choose.setAttribute("aria-pressed", "false");
    const head = element.appendChild(document.createElement("th"));
    head.scope = "row";
    head.append(choose);
    const row = { element, swatch, choose, cells: [0, 1, 2].map(() => element.insertCell()) };
    this.rows.set(name, row);
    return row;
  }

  // Shows the values at a place of the columns; the last values if it is null.
  point(index) {
    this.index = index ?? null;
    this.head.textContent = this.index === null ? lockstepText("Last") : lockstepText("Value");
    for (const { n, edges, ranks, cells } of this.rows.values()) {
      const value = this.valueAt(n);
      const within = this.index === null ? [] : edges.map((edge) => this.valueAt(edge)).filter((one) => one !== undefined);
      const range = within.length === 2 ? ` (${within.map(this.format).join(" – ")})` : "";
      const rank = ranks < 0 ? "" : ` · rank ${this.valueAt(ranks)}`;
      cells[0].textContent = value === undefined ? "–" : this.format(value) + range + rank + this.age(n);
    }
  }

  // Returns the minimum age of the last value of a line as text; empty if it is not old.
  age(n) {
    if (this.index !== null || !this.isLive) return "";
    const { columns, times } = this.lines;
    const age = times.at(-1) - times[columns[n].findLastIndex((one) => !Number.isNaN(one))];
    if (!(age > OLD_S)) return "";
    const words = age < 120 ? `${Math.round(age)} s` : `${Math.floor(age / 60)} min`;
    return ` (${lockstepText("over {age} old").replace("{age}", words)})`;
  }

  valueAt(n) {
    const column = this.lines.columns[n];
    const isValue = (one) => !Number.isNaN(one);
    if (this.index === null) return column.findLast(isValue);
    // Between two of its values, a line by steps has the value before; before its first and after its last, it has none.
    const isInside = this.bySteps && column.subarray(this.index).some(isValue);
    const value = isInside ? column.subarray(0, this.index + 1).findLast(isValue) : column[this.index];
    return Number.isNaN(value) ? undefined : value;
  }

  // Sorts by a number of each row; `sign`: 1 for ascending, -1 for descending. Rows without it come last.
  sort(of, sign) {
    const key = (row) => sign * (of(row) ?? sign * Infinity);
    const rows = [...this.rows.values()].sort((a, b) => key(a) - key(b));
    rows.forEach(({ element }) => this.body.append(element));
  }

  choose(name) {
    this.isolated = this.isolated === name ? null : name;
    for (const [one, { choose }] of this.rows) choose.setAttribute("aria-pressed", String(one === this.isolated));
    this.isolate(this.isolated);
  }
}

function button(words, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.append(words);
  made.addEventListener("click", act);
  return made;
}

function extremes(column) {
  let [least, greatest] = [null, null];
  for (const value of column) {
    if (Number.isNaN(value)) continue;
    if (least === null || value < least) least = value;
    if (greatest === null || value > greatest) greatest = value;
  }
  return [least, greatest];
}

window.LockstepLegend = LockstepLegend;
