// The map of ranks over time, for src/page/run/map: each cell is one pixel of a hidden canvas, which is drawn enlarged.
//
// The hidden canvas is a ring of columns: a new column replaces the oldest one, and no other cell is painted again. Cells without a value
// are transparent, so that the hatched background of the element is visible.

const UNMEASURED = 0;
const dark = matchMedia("(prefers-color-scheme: dark)");

class RankMap {
  constructor(element) {
    this.element = element;
    this.canvas = document.createElement("canvas");
    this.canvas.style.position = "absolute";
    this.canvas.style.inset = "0";
    this.canvas.style.pointerEvents = "none";
    element.append(this.canvas);
    this.ring = document.createElement("canvas");
    [this.columns, this.rows, this.oldest] = [0, 0, 0];
    [this.column, this.row] = [-1, -1];
    this.recolour = () => {
      this.theme = null;
      for (let column = 0; column < this.columns; column += 1) this.paint(column);
      this.draw();
    };
    dark.addEventListener("change", this.recolour);
  }

  // Sets all cells, column by column, the oldest first. The size is in CSS pixels.
  fill(rows, width, height, cells) {
    const ratio = devicePixelRatio;
    [this.width, this.height, this.ratio] = [width, height, ratio];
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    [this.rows, this.columns, this.oldest] = [rows, rows > 0 ? cells.length / rows : 0, 0];
    this.cells = cells;
    this.ring.width = Math.max(this.columns, 1);
    this.ring.height = Math.max(rows, 1);
    for (let column = 0; column < this.columns; column += 1) this.paint(column);
    this.draw();
  }

  // Replaces the oldest columns by as many new ones.
  append(cells) {
    if (this.columns === 0) return;
    for (let at = 0; at < cells.length; at += this.rows) {
      this.cells.set(cells.subarray(at, at + this.rows), this.oldest * this.rows);
      this.paint(this.oldest);
      this.oldest = (this.oldest + 1) % this.columns;
    }
    this.draw();
  }

  // Marks the cell under the pointer, counted from the left and from the top; -1 for none.
  point(column, row) {
    if (this.column === column && this.row === row) return;
    [this.column, this.row] = [column, row];
    this.draw();
  }

  // Paints one column of the hidden canvas, at its place in the ring.
  paint(column) {
    const context = this.ring.getContext("2d");
    this.theme ??= window.lockstepGrid.theme(this.element, this.canvas.getContext("2d"));
    const image = context.createImageData(1, this.rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < this.rows; row += 1) {
      const cell = this.cells[column * this.rows + row];
      pixels[row] = cell === UNMEASURED ? 0 : this.theme.diverging[cell];
    }
    context.putImageData(image, column, 0);
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (this.columns === 0) return;
    context.imageSmoothingEnabled = false;
    const older = this.columns - this.oldest;
    const edge = Math.round((older / this.columns) * this.canvas.width);
    context.drawImage(this.ring, this.oldest, 0, older, this.rows, 0, 0, edge, this.canvas.height);
    if (this.oldest > 0) context.drawImage(this.ring, 0, 0, this.oldest, this.rows, edge, 0, this.canvas.width - edge, this.canvas.height);
    if (this.column < 0) return;
    const [wide, high] = [this.canvas.width / this.columns, this.canvas.height / this.rows];
    const [x, y] = [this.column * wide, this.row * high];
    context.lineWidth = 2 * this.ratio;
    context.strokeStyle = this.theme.inks.page;
    context.strokeRect(x - 1.5 * this.ratio, y - 1.5 * this.ratio, wide + 3 * this.ratio, high + 3 * this.ratio);
    context.strokeStyle = this.theme.inks.focus;
    context.strokeRect(x - 3.5 * this.ratio, y - 3.5 * this.ratio, wide + 7 * this.ratio, high + 7 * this.ratio);
  }

  destroy() {
    this.canvas.remove();
    dark.removeEventListener("change", this.recolour);
  }
}

window.lockstepMap = {
  create: (element) => new RankMap(element),
  fill: (map, ...picture) => map.fill(...picture),
  append: (map, cells) => map.append(cells),
  point: (map, column, row) => map.point(column, row),
  destroy: (map) => map.destroy(),
};
