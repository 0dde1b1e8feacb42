// Colours of cells. A cell is one byte; the larger, the worse, so that the worst of several cells is their maximum.

const CODE = { missing: 0, zero: 1, low: 2, high: 253, infinite: 254, nan: 255 };
const STEPS = CODE.high - CODE.low;

// Both read on light and on dark ground: dark blue to yellow, and blue over grey to red.
const VALUE_STOPS = ["#1d1147", "#2c3d8f", "#1f6e9c", "#1f9e89", "#6ccd5a", "#f4e61e"];
const CHANGE_STOPS = ["#1c4fb4", "#5f97df", "#b9cbe0", "#c9ccd0", "#eebfa0", "#e0703c", "#a3140f"];
const EXCESS_STOPS = ["#8b97a6", "#f2c14e", "#ef8a2c", "#d43d1f", "#7d0a18"];
const SPECIAL = { zero: "#7d8794", infinite: "#ff7a00", nan: "#ff1fa2" };

function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function mix(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const [a, b] = [rgb(stops[low]), rgb(stops[low + 1])];
  return a.map((v, i) => Math.round(v + (b[i] - v) * (at - low)));
}

// code -> pixel, as the little-endian number that ImageData takes.
function palette(stops, empty) {
  const pixel = ([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
  const table = new Uint32Array(256);
  table[CODE.missing] = pixel(rgb(empty));
  table[CODE.zero] = pixel(rgb(SPECIAL.zero));
  for (let code = CODE.low; code <= CODE.high; code++) table[code] = pixel(mix(stops, (code - CODE.low) / STEPS));
  table[CODE.infinite] = pixel(rgb(SPECIAL.infinite));
  table[CODE.nan] = pixel(rgb(SPECIAL.nan));
  return table;
}

// Turns a plane of values into codes. `mode`: value, change (against the tensor's own median) or excess (over a limit).
function encode(plane, rows, bins, scale, mode) {
  const codes = new Uint8Array(rows * bins);
  const { bits, numbers } = plane;
  const log = scale !== "linear";
  let map;
  if (mode === "excess") map = { low: -1, high: 3 };
  else if (mode === "change") map = log ? { low: -2, high: 2 } : { low: -0.5, high: 0.5 };
  else map = range(plane, log);
  const span = map.high - map.low || 1;
  for (let row = 0; row < rows; row++) {
    const middle = mode === "change" ? median(plane, row * bins, bins, log) : 0;
    for (let i = row * bins; i < (row + 1) * bins; i++) {
      if (bits[i] === MISSING) continue;
      const size = Math.abs(numbers[i]);
      if (Number.isNaN(size)) codes[i] = CODE.nan;
      else if (size === Infinity) codes[i] = CODE.infinite;
      else if (size === 0 && mode !== "change" && log) codes[i] = CODE.zero;
      else {
        let height = log ? Math.log10(size) : size;
        if (mode === "change") height = size === 0 && log ? -9 : height - middle;
        const code = CODE.low + ((height - map.low) / span) * STEPS;
        codes[i] = Math.min(Math.max(Math.round(code), CODE.low), CODE.high);
      }
    }
  }
  return { codes, low: map.low, high: map.high, log: log && mode !== "change", mode };
}

// All values but the last half per cent at both ends; one spike must not make everything else one colour.
function range(plane, log) {
  const sample = [];
  const stride = Math.max(1, Math.floor(plane.bits.length / 200000));
  for (let i = 0; i < plane.bits.length; i += stride) {
    const size = Math.abs(plane.numbers[i]);
    if (Number.isFinite(size) && (size > 0 || !log)) sample.push(log ? Math.log10(size) : size);
  }
  sample.sort((a, b) => a - b);
  if (!sample.length) return { low: 0, high: 1 };
  const at = (share) => sample[Math.round(share * (sample.length - 1))];
  let [low, high] = [at(0.005), at(0.995)];
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  return { low, high };
}

function median(plane, from, bins, log) {
  const values = [];
  for (let i = from; i < from + bins; i++) {
    const size = Math.abs(plane.numbers[i]);
    if (plane.bits[i] !== MISSING && Number.isFinite(size) && (size > 0 || !log)) values.push(log ? Math.log10(size) : size);
  }
  values.sort((a, b) => a - b);
  return values.length ? values[values.length >> 1] : 0;
}

// The code that stands for several cells.
function worseCode(a, b, mode) {
  if (mode !== "change" || a > CODE.high || b > CODE.high || a === CODE.missing || b === CODE.missing) return Math.max(a, b);
  const middle = (CODE.low + CODE.high) / 2;
  return Math.abs(a - middle) > Math.abs(b - middle) ? a : b;
}
