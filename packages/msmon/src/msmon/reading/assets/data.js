// What the page holds: deflated arrays of float32 bits, unpacked when they are first needed.

const MISSING = 0x7fc10000;

const byId = (id) => document.getElementById(id);

async function inflate(id) {
  const text = atob(byId(id).textContent.trim());
  const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Float32 numbers and the same as bits: only the bits tell a missing value from a NaN.
class Values {
  constructor(bits) {
    this.bits = bits;
    this.numbers = new Float32Array(bits.buffer);
  }

  static async load(id, half) {
    const bytes = await inflate(id);
    const width = half ? 2 : 4;
    const count = bytes.length / width;
    const bits = new Uint32Array(count);
    for (let part = 0; part < width; part++) {
      const shift = 8 * (part + 4 - width);
      const offset = part * count;
      for (let i = 0; i < count; i++) bits[i] |= bytes[offset + i] << shift;
    }
    return new Values(bits);
  }
}

// One data type: arrays by statistic, and where in them a tensor and a line are.
class DataType {
  constructor(meta, names) {
    Object.assign(this, meta);
    this.tensors = meta.tensors.map((id) => names[id]);
    this.ids = meta.tensors;
    this.position = new Map(meta.tensors.map((id, at) => [id, at]));
    this.detailOf = new Int32Array(this.tensors.length).fill(-1);
    if (meta.detail) meta.detail.forEach((at, i) => (this.detailOf[at] = i));
    else this.detailOf.forEach((_, i) => (this.detailOf[i] = i));
    this.detailed = meta.detail ? meta.detail.length : this.tensors.length;
    this.bins = meta.first.length;
    this.members = meta.layers.map(() => []);
    meta.layerOf.forEach((layer, at) => this.members[layer].push(at));
    this.marked = new Set();
    for (let i = 0; i < meta.marks.length; i += 2) this.marked.add(meta.marks[i] * this.bins + meta.marks[i + 1]);
    this.cache = new Map();
  }

  async array(stat, part) {
    const id = this.blobs[stat][part];
    if (id === null) return null;
    if (!this.cache.has(id)) this.cache.set(id, Values.load(id, this.half));
    return this.cache.get(id);
  }

  // One row of `bins` values for each tensor: of one line, or of the worst. Tensors that have none are missing.
  async plane(stat, view) {
    const { bins } = this;
    const worst = await this.array(stat, "worst");
    if (view < 0 && worst) return worst;
    const lines = await this.array(stat, "lines");
    const out = new Values(new Uint32Array(this.tensors.length * bins).fill(MISSING));
    for (let at = 0; at < this.tensors.length; at++) {
      const detail = this.detailOf[at];
      if (detail < 0) continue;
      for (let line = Math.max(view, 0); line < (view < 0 ? this.lines.length : view + 1); line++) {
        const from = (line * this.detailed + detail) * bins;
        for (let bin = 0; bin < bins; bin++) {
          const cell = at * bins + bin;
          if (view >= 0 || worse(this.stats[stat].worst, lines, from + bin, out, cell)) out.bits[cell] = lines.bits[from + bin];
        }
      }
    }
    return out;
  }

  // The line that has the worst value of a cell, or -1.
  async worstLine(stat, at, bin) {
    const lines = await this.array(stat, "lines");
    const detail = this.detailOf[at];
    if (detail < 0) return -1;
    let best = -1;
    const index = (line) => (line * this.detailed + detail) * this.bins + bin;
    for (let line = 0; line < this.lines.length; line++) {
      if (lines.bits[index(line)] === MISSING) continue;
      if (best < 0 || worse(this.stats[stat].worst, lines, index(line), lines, index(best))) best = line;
    }
    return best;
  }

  // The values of one tensor on one line, or null where the page does not have them.
  async curve(stat, at, line) {
    const detail = this.detailOf[at];
    if (line < 0 || detail < 0) {
      const worst = await this.array(stat, "worst");
      return worst && slice(worst, at * this.bins, this.bins);
    }
    return slice(await this.array(stat, "lines"), (line * this.detailed + detail) * this.bins, this.bins);
  }

  steps(bin) {
    const [first, last] = [this.first[bin], this.last[bin]];
    return first === last ? `step ${first}` : `steps ${first} to ${last}`;
  }
}

function slice(values, from, count) {
  return new Values(values.bits.slice(from, from + count));
}

function worse(kind, a, i, b, j) {
  if (a.bits[i] === MISSING) return false;
  if (b.bits[j] === MISSING) return true;
  const [x, y] = [a.numbers[i], b.numbers[j]];
  if (Number.isNaN(y)) return false;
  if (Number.isNaN(x)) return true;
  if (kind === "largest") return x > y;
  if (kind === "smallest") return x < y;
  return Math.abs(x) > Math.abs(y);
}

function format(number) {
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "Inf" : "-Inf";
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size >= 1e-3 && size < 1e5 ? String(Number(number.toPrecision(5))) : number.toExponential(3);
}
