// The grid of all GPUs, for src/page/overview/grid: cells are pixels of one image; names and rings are on a second canvas above it.
// Sizes and places are in CSS pixels.

// Scripts share their global names. A block keeps its own.
{
  // Colour numbers of the cells. 1 to 254 are a scale.
  const UNMEASURED = 0;
  const DOWN = 255;
  const CIVIDIS = ["#00224e", "#434e6c", "#7c7b78", "#bcae6c", "#fee838"];
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const pixel = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

  // Returns 256 colours between equidistant stops.
  const scale = (stops) => {
    const colours = stops.map(channels);
    return Array.from({ length: 256 }, (_, n) => {
      const at = (Math.min(Math.max(n - 1, 0), 253) / 253) * (colours.length - 1);
      const low = Math.min(Math.floor(at), colours.length - 2);
      return colours[low].map((value, channel) => Math.round(value + (colours[low + 1][channel] - value) * (at - low)));
    });
  };

  // Returns the colours of the theme: two scales, and colours for texts and rings.
  const theme = (element, context) => {
    const style = getComputedStyle(element);
    // A canvas returns each colour as #rrggbb.
    const token = (name) => {
      context.fillStyle = style.getPropertyValue(name).trim();
      return context.fillStyle;
    };
    const texture = { diverging: scale([token("--below"), token("--level"), token("--above")]), sequential: scale(CIVIDIS) };
    return {
      texture,
      diverging: Uint32Array.from(texture.diverging, pixel),
      sequential: Uint32Array.from(texture.sequential, pixel),
      base: pixel(channels(token("--color-base-200"))),
      line: pixel(channels(token("--faint"))),
      wrong: pixel(channels(token("--color-error"))),
      inks: { text: token("--color-base-content"), muted: token("--muted"), ring: token("--color-error"), focus: token("--color-primary"), page: token("--color-base-100"), faint: token("--faint") },
    };
  };

  class Grid {
    constructor(element) {
      this.element = element;
      this.cells = this.canvas();
      this.above = this.canvas();
      this.count = 0;
      this.recolour = () => {
        this.style = null;
        this.redraw();
      };
      dark.addEventListener("change", this.recolour);
    }

    canvas() {
      const canvas = document.createElement("canvas");
      canvas.style.position = "absolute";
      canvas.style.inset = "0";
      canvas.style.pointerEvents = "none";
      this.element.append(canvas);
      return canvas;
    }

    // Sets the places of cells and names. A name is [text, x, y, is the name of a group].
    layout(width, height, cellWidth, cellHeight, xs, ys, names) {
      const ratio = devicePixelRatio;
      this.ratio = ratio;
      this.place = { width, height, cellWidth, cellHeight, xs, ys, names };
      for (const canvas of [this.cells, this.above]) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
        canvas.style.width = `${width}px`;
        canvas.style.height = `${height}px`;
      }
      this.image = new ImageData(Math.max(this.cells.width, 1), Math.max(this.cells.height, 1));
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.count = xs.length;
      this.drawn = null;
      // Old values belong to other cells.
      this.colours = null;
      this.texts = null;
      this.rings = [];
      this.pointed = -1;
    }

    // One colour number per cell, and one text per cell if there is room.
    paint(colours, diverging, texts) {
      if (this.count === 0 || colours.length !== this.count) return;
      if (this.diverging !== diverging) this.drawn = null;
      Object.assign(this, { colours, diverging, texts });
      this.palette();
      const { cellWidth, cellHeight, xs, ys } = this.place;
      let [left, top, right, bottom] = [Infinity, Infinity, 0, 0];
      for (let cell = 0; cell < this.count; cell += 1) {
        if (this.drawn && this.drawn[cell] === colours[cell]) continue;
        const x = Math.round(xs[cell] * this.ratio);
        const y = Math.round(ys[cell] * this.ratio);
        const width = Math.round((xs[cell] + cellWidth) * this.ratio) - x;
        const height = Math.round((ys[cell] + cellHeight) * this.ratio) - y;
        this.fill(colours[cell], x, y, width, height);
        left = Math.min(left, x);
        top = Math.min(top, y);
        right = Math.max(right, x + width);
        bottom = Math.max(bottom, y + height);
      }
      this.drawn = colours;
      if (right > left) this.cells.getContext("2d").putImageData(this.image, 0, 0, left, top, right - left, bottom - top);
      this.drawAbove();
    }

    // Sets the ringed cells and the cell under the pointer (-1: none) for the next paint.
    mark(rings, pointed) {
      Object.assign(this, { rings, pointed });
    }

    fill(colour, x, y, width, height) {
      const stride = this.image.width;
      const { base, line, wrong } = this.style;
      const plain = this.style[this.diverging ? "diverging" : "sequential"][colour];
      for (let row = 0; row < height; row += 1) {
        const begin = (y + row) * stride + x;
        if (colour === UNMEASURED) {
          for (let column = 0; column < width; column += 1) this.pixels[begin + column] = (row + column) % 4 === 0 ? line : base;
        } else if (colour === DOWN) {
          this.pixels.fill(base, begin, begin + width);
          const at = Math.round((row / Math.max(height - 1, 1)) * (width - 1));
          this.pixels[begin + at] = this.pixels[begin + width - 1 - at] = wrong;
        } else this.pixels.fill(plain, begin, begin + width);
      }
    }

    // Reads the colours once per theme.
    palette() {
      if (this.style) return;
      this.style = theme(this.element, this.above.getContext("2d"));
      this.texture = this.style.texture;
      this.inks = this.style.inks;
    }

    drawAbove() {
      this.palette();
      const context = this.above.getContext("2d");
      const { width, height, cellWidth, cellHeight, xs, ys, names } = this.place;
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      context.textBaseline = "middle";
      context.textAlign = "left";
      for (const [text, x, y, heads] of names) {
        context.font = heads ? "600 13px system-ui, sans-serif" : "12px system-ui, sans-serif";
        context.fillStyle = heads ? this.inks.text : this.inks.muted;
        context.fillText(text, x, y);
      }
      context.textAlign = "center";
      context.font = "12px system-ui, sans-serif";
      for (let cell = 0; this.colours && this.texts && cell < this.count; cell += 1) {
        context.fillStyle = this.ink(this.colours[cell]);
        context.fillText(this.texts[cell], xs[cell] + cellWidth / 2, ys[cell] + cellHeight / 2 + 1);
      }
      const ring = (cell, colour, by) => {
        context.strokeStyle = colour;
        context.lineWidth = 2;
        context.strokeRect(xs[cell] - by, ys[cell] - by, cellWidth + 2 * by, cellHeight + 2 * by);
      };
      for (const cell of this.rings) {
        ring(cell, this.inks.page, 0);
        ring(cell, this.inks.ring, 1.5);
      }
      if (this.pointed >= 0) ring(this.pointed, this.inks.focus, 2.5);
    }

    // Black or white, which is readable on the colour.
    ink(colour) {
      if (colour === UNMEASURED || colour === DOWN) return this.inks.muted;
      const [red, green, blue] = this.texture[this.diverging ? "diverging" : "sequential"][colour].map((value) => (value / 255) ** 2.2);
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
    }

    redraw() {
      if (!this.colours) return;
      this.drawn = null;
      this.paint(this.colours, this.diverging, this.texts);
    }

    destroy() {
      this.cells.remove();
      this.above.remove();
      dark.removeEventListener("change", this.recolour);
    }
  }

  window.lockstepGrid = {
    theme,
    create: (element) => new Grid(element),
    layout: (grid, ...place) => grid.layout(...place),
    paint: (grid, colours, diverging, texts) => grid.paint(colours, diverging, texts),
    mark: (grid, rings, pointed) => grid.mark(rings, pointed),
    destroy: (grid) => grid.destroy(),
  };
}
