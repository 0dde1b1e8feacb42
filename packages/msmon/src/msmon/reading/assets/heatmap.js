// The heat map: a row for each tensor, rows of a layer under the layer's own row, only what is in sight is drawn.

const LABELS = 215;
const ROW = { tensor: 16, layer: 18, least: 2 };

class HeatMap {
  constructor(onPick) {
    this.box = byId("rows");
    this.canvas = this.box.querySelector("canvas");
    this.axis = byId("axis").querySelector("canvas");
    this.open = new Set();
    this.filter = null;
    this.chosen = new Map();
    this.cursor = null;
    this.onPick = onPick;
    this.box.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.layout()).observe(this.box);
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => hideTip());
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  // `coded` comes from `encode`, `plane` holds the values behind it.
  show(type, stat, plane, coded, palette) {
    if (type !== this.type) this.cursor = null;
    Object.assign(this, { type, stat, plane, coded, palette });
    this.layers = type.members.map((members) => this.combine(members));
    this.layout();
  }

  // The worst code of some tensors, bin by bin. What the page holds only for whole layers is shown by the caller's plane.
  combine(members) {
    const { bins } = this.type;
    const out = new Uint8Array(bins);
    for (const at of members) {
      for (let bin = 0; bin < bins; bin++) {
        out[bin] = worseCode(out[bin], this.coded.codes[at * bins + bin], this.coded.mode);
      }
    }
    return out;
  }

  layout() {
    if (!this.type) return;
    this.rows = [];
    const { members, layers } = this.type;
    layers.forEach((name, layer) => {
      const shown = this.filter ? members[layer].filter((at) => this.filter(at)) : members[layer];
      if (!shown.length) return;
      const lone = members[layer].length === 1;
      if (!lone) this.rows.push({ layer, name, count: shown.length });
      if (lone || this.filter || this.open.has(layer)) shown.forEach((at) => this.rows.push({ at, indent: !lone }));
    });
    const height = this.box.clientHeight;
    const layerRows = this.rows.filter((row) => row.layer !== undefined).length;
    const full = this.rows.reduce((sum, row) => sum + (row.layer === undefined ? ROW.tensor : ROW.layer), 0);
    // Many closed layers: as low as it takes to see the whole model at once.
    const low = full > 3 * height ? Math.max(ROW.least, Math.min(ROW.layer, height / (layerRows || 1))) : ROW.layer;
    let top = 0;
    for (const row of this.rows) {
      row.top = top;
      row.height = row.layer === undefined ? ROW.tensor : low;
      top += row.height;
    }
    this.height = top;
    byId("rows-height").style.height = `${top}px`;
    this.width = this.box.clientWidth;
    this.plot = Math.max(this.width - LABELS, 50);
    this.ratio = window.devicePixelRatio || 1;
    for (const [canvas, h] of [[this.canvas, height], [this.axis, 22]]) {
      canvas.width = Math.round(this.width * this.ratio);
      canvas.height = Math.round(h * this.ratio);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${h}px`;
    }
    this.drawAxis();
    this.draw();
  }

  codesOf(row) {
    const { bins } = this.type;
    return row.layer === undefined ? this.coded.codes.subarray(row.at * bins, (row.at + 1) * bins) : this.layers[row.layer];
  }

  draw() {
    if (!this.type) return;
    const { ratio } = this;
    const context = this.canvas.getContext("2d");
    const [width, height] = [this.canvas.width, this.canvas.height];
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    const scroll = this.box.scrollTop;
    const visible = this.rows.filter((row) => row.top + row.height > scroll && row.top < scroll + height / ratio);
    const plot = Math.round(this.plot * ratio);
    const left = Math.round(LABELS * ratio);
    if (plot > 0 && visible.length) context.putImageData(this.image(visible, plot, height, scroll), left, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, -scroll * ratio);
    this.drawLabels(context, visible);
    for (const row of visible) this.drawMarks(context, row);
    this.drawCursor(context);
  }

  image(visible, plot, height, scroll) {
    const { bins } = this.type;
    const image = new ImageData(plot, height);
    const pixels = new Uint32Array(image.data.buffer);
    const line = new Uint32Array(plot);
    for (const row of visible) {
      const codes = this.codesOf(row);
      for (let x = 0; x < plot; x++) {
        const from = Math.floor((x * bins) / plot);
        const to = Math.max(from + 1, Math.floor(((x + 1) * bins) / plot));
        let code = 0;
        for (let bin = from; bin < to; bin++) code = worseCode(code, codes[bin], this.coded.mode);
        line[x] = this.palette[code];
      }
      const top = Math.max(Math.round((row.top - scroll) * this.ratio), 0);
      // A hair of ground between rows that are high enough for it.
      const gap = row.height > 8 ? 1 : 0;
      const bottom = Math.min(Math.round((row.top + row.height - scroll) * this.ratio) - gap, height);
      for (let y = top; y < bottom; y++) pixels.set(line, y * plot);
    }
    return image;
  }

  drawLabels(context, visible) {
    const style = getComputedStyle(document.documentElement);
    context.textBaseline = "middle";
    let free = -Infinity;
    for (const row of visible) {
      if (row.top + row.height / 2 < free) continue;
      const layer = row.layer !== undefined;
      const chosen = !layer && this.chosen.has(this.type.ids[row.at]);
      context.font = `${layer ? "600 " : ""}12px system-ui, "DejaVu Sans", sans-serif`;
      context.fillStyle = chosen ? style.getPropertyValue("--accent") : style.getPropertyValue("--text");
      const sign = layer ? (this.open.has(row.layer) || this.filter ? "▾ " : "▸ ") : "";
      const text = layer ? `${sign}${row.name}` : this.shortName(row);
      const indent = layer ? 4 : row.indent ? 18 : 4;
      const tail = layer ? ` (${row.count})` : "";
      context.fillText(fitText(context, text, LABELS - indent - 8 - context.measureText(tail).width, layer) + tail, indent, row.top + row.height / 2 + 0.5);
      free = row.top + row.height / 2 + 13;
      if (!layer && this.partly && this.type.detailOf[row.at] < 0) {
        context.fillStyle = style.getPropertyValue("--quiet");
        context.font = '11px system-ui, "DejaVu Sans", sans-serif';
        context.fillText("kept for all ranks together only", LABELS + 10, row.top + row.height / 2 + 0.5);
      }
    }
  }

  // Under a layer's row the layer's name need not be said again.
  shortName(row) {
    const name = label(this.type.tensors[row.at]);
    const layer = this.type.layers[this.type.layerOf[row.at]];
    const prefix = `${layer}.`;
    return row.indent && name.startsWith(prefix) && name.length > prefix.length ? name.slice(prefix.length) : name;
  }

  drawMarks(context, row) {
    const { bins, marked } = this.type;
    if (!marked.size) return;
    const members = row.layer === undefined ? [row.at] : this.type.members[row.layer];
    const width = this.plot / bins;
    let before = false;
    for (let bin = 0; bin < bins; bin++) {
      const here = members.some((at) => marked.has(at * bins + bin));
      if (here) {
        const x = LABELS + bin * width;
        context.fillStyle = "#ffffff";
        context.strokeStyle = "#000000";
        context.lineWidth = 1;
        context.fillRect(x, row.top, Math.max(width, 1), row.height > 8 ? 2 : 1);
        if (!before && row.height > 8) {
          const middle = x + width / 2;
          context.beginPath();
          context.moveTo(middle - 4.5, row.top + 0.5);
          context.lineTo(middle + 4.5, row.top + 0.5);
          context.lineTo(middle, row.top + 8.5);
          context.closePath();
          context.fill();
          context.stroke();
        }
      }
      before = here;
    }
  }

  drawCursor(context) {
    const row = this.cursor && this.rows.find((one) => one.at === this.cursor.at);
    if (!row) return;
    const width = this.plot / this.type.bins;
    context.lineWidth = 2;
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
    context.strokeRect(LABELS + this.cursor.bin * width - 1, row.top, Math.max(width, 3) + 2, row.height);
  }

  drawAxis() {
    const context = this.axis.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, 22);
    context.font = '11px system-ui, "DejaVu Sans", sans-serif';
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--quiet");
    context.textBaseline = "bottom";
    context.fillText("step", LABELS - 32, 20);
    const { bins, first } = this.type;
    let free = LABELS;
    for (let tick = 0; tick < 9; tick++) {
      const bin = Math.min(Math.round((tick * bins) / 8), bins - 1);
      const text = String(first[bin]);
      const x = LABELS + (bin / bins) * this.plot;
      if (x < free || x + context.measureText(text).width > this.width) continue;
      context.fillText(text, x, 20);
      free = x + context.measureText(text).width + 10;
    }
  }

  place(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const y = event.clientY - bounds.top + this.box.scrollTop;
    const x = event.clientX - bounds.left - LABELS;
    const row = this.rows.find((one) => y >= one.top && y < one.top + one.height);
    if (!row) return null;
    const bin = x < 0 ? -1 : Math.min(Math.floor((x / this.plot) * this.type.bins), this.type.bins - 1);
    return { row, bin };
  }

  // The tensor with the worst value in a cell of a layer's row.
  worstMember(layer, bin) {
    const { bins } = this.type;
    const kind = this.type.stats[this.stat].worst;
    return this.type.members[layer].reduce((best, at) =>
      worse(kind, this.plane, at * bins + bin, this.plane, best * bins + bin) ? at : best);
  }

  hover(event) {
    const place = this.place(event);
    if (!place) return hideTip();
    const { row, bin } = place;
    const layer = row.layer !== undefined;
    if (bin < 0) return showTip(event, [["b", layer ? `${row.name} (${row.count} tensors)` : label(this.type.tensors[row.at])]]);
    const at = layer ? this.worstMember(row.layer, bin) : row.at;
    this.onHover({ event, at, bin, layer: layer ? row.name : null });
  }

  click(event) {
    const place = this.place(event);
    if (!place) return;
    const { row, bin } = place;
    if (row.layer !== undefined && bin < 0) return this.toggle(row.layer);
    const at = row.layer === undefined ? row.at : this.worstMember(row.layer, bin);
    this.pick(at, Math.max(bin, 0), event.ctrlKey || event.metaKey || event.shiftKey);
  }

  pick(at, bin, add) {
    this.cursor = { at, bin };
    this.open.add(this.type.layerOf[at]);
    this.layout();
    this.reveal(at);
    this.onPick(at, bin, add);
  }

  reveal(at) {
    const row = this.rows.find((one) => one.at === at);
    if (!row) return;
    const [top, height] = [this.box.scrollTop, this.box.clientHeight];
    if (row.top < top || row.top + row.height > top + height) this.box.scrollTop = row.top - height / 2;
    this.draw();
  }

  toggle(layer) {
    if (!this.open.delete(layer)) this.open.add(layer);
    this.layout();
  }

  key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const tensors = this.rows.filter((row) => row.layer === undefined).map((row) => row.at);
    if (!tensors.length) return;
    const now = this.cursor ? tensors.indexOf(this.cursor.at) : -1;
    const at = tensors[Math.min(Math.max(now + move[0], 0), tensors.length - 1)];
    const bin = Math.min(Math.max((this.cursor ? this.cursor.bin : 0) + move[1], 0), this.type.bins - 1);
    this.pick(at, bin, event.shiftKey);
  }
}

// The end of a name tells more than its beginning.
function fitText(context, text, width, keepStart) {
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    const part = keepStart ? `${text.slice(0, middle)}…` : `…${text.slice(-middle)}`;
    if (context.measureText(part).width <= width) low = middle;
    else high = middle - 1;
  }
  return keepStart ? `${text.slice(0, low)}…` : `…${text.slice(text.length - low)}`;
}
