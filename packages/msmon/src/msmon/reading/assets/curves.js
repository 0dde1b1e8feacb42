// Curves of the chosen tensors: one chart for each statistic, a line for each tensor, data type and rank.

const LINE_COLORS = ["#3b7dd8", "#e0813a", "#3fa55b", "#c94f7c", "#8b6fd1", "#1f9fa8", "#a4782b", "#d4483b", "#6b8e23", "#b05fc4"];
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 4], [1, 5]];

class Curves {
  constructor() {
    this.box = byId("charts");
    this.charts = [];
    this.hidden = new Set();
    new ResizeObserver(() => this.resize()).observe(this.box);
  }

  // entries: {type, at, tensor, color, dash, line, name}; stats: names in order; step: the clicked one.
  async show(entries, stats, options) {
    const request = (this.request = {});
    const drawn = [];
    for (const stat of stats) {
      const tables = [];
      const lines = [];
      for (const entry of entries) {
        if (!entry.type.stats[stat] || this.hidden.has(entry.key)) continue;
        const curve = await entry.type.curve(stat, entry.at, entry.line);
        if (!curve || curve.bits.every((bits) => bits === MISSING)) continue;
        lines.push({ ...entry, curve });
        tables.push([entry.type.first, Array.from(curve.numbers, (v) => (Number.isFinite(v) ? v : null))]);
      }
      if (lines.length) drawn.push({ stat, lines, data: uPlot.join(tables), scale: lines[0].type.stats[stat].scale });
    }
    // Something else was chosen while arrays were being unpacked.
    if (request !== this.request) return;
    const scroll = this.box.scrollTop;
    this.clear();
    for (const one of drawn) this.charts.push(this.chart(one, options));
    this.box.scrollTop = scroll;
  }

  clear() {
    this.charts.forEach((chart) => chart.destroy());
    this.charts = [];
    this.box.replaceChildren();
  }

  chart({ stat, lines, data, scale }, options) {
    const holder = element("div", "chart");
    holder.dataset.stat = stat;
    holder.append(element("h3", "", stat));
    this.box.append(holder);
    const style = getComputedStyle(document.documentElement);
    const quiet = style.getPropertyValue("--quiet");
    const grid = { stroke: style.getPropertyValue("--grid"), width: 1 };
    const axis = { stroke: quiet, grid, ticks: grid, font: '11px system-ui, "DejaVu Sans", sans-serif' };
    const log = options.log && scale !== "linear" ? logScale(data) : {};
    // All zero: uPlot would draw an axis up to 100.
    if (!log.distr) log.range = (_, low, high) => (low === 0 && high === 0 ? [-0.1, 1] : uPlot.rangeNum(low, high, 0.1, true));
    const y = log.distr === 3 ? data.map((column, i) => (i ? column.map((v) => (v > 0 ? v : null)) : column)) : data;
    const chart = new uPlot(
      {
        width: this.width(),
        height: 148,
        legend: { show: false },
        cursor: { sync: { key: "steps" }, drag: { x: true, y: false }, points: { size: 6 } },
        scales: { x: { time: false }, y: log },
        axes: [
          { ...axis, size: 26 },
          { ...axis, size: 62, grid: log.distr ? { ...grid, filter: decades } : grid, values: (_, ticks) => ticks.map(tick) },
        ],
        series: [
          {},
          ...lines.map((line) => ({
            stroke: line.color,
            dash: line.dash,
            width: 1.4,
            spanGaps: false,
            points: { show: data[0].length < 60, size: 4 },
          })),
        ],
        hooks: {
          draw: [(u) => drawExtras(u, lines, options)],
          setCursor: [(u) => this.readout(u, stat, lines)],
        },
      },
      y,
      holder,
    );
    chart.over.addEventListener("mouseleave", () => hideTip());
    return chart;
  }

  readout(u, stat, lines) {
    const { idx, left, top } = u.cursor;
    // Only the chart under the mouse speaks; the others are in step with it.
    if (idx === null || idx === undefined || left < 0 || !u.over.matches(":hover")) return;
    const bounds = u.over.getBoundingClientRect();
    const step = u.data[0][idx];
    const found = lines
      .map((line) => ({ line, bin: line.type.first.indexOf(step) }))
      .filter(({ line, bin }) => bin >= 0 && line.curve.bits[bin] !== MISSING)
      .map(({ line, bin }) => ({ name: line.name, value: line.curve.numbers[bin], when: line.type.steps(bin) }))
      .sort((a, b) => (Number.isNaN(b.value) ? 1 : 0) - (Number.isNaN(a.value) ? 1 : 0) || Math.abs(b.value) - Math.abs(a.value));
    if (!found.length) return;
    const rows = found.slice(0, 12).map(({ name, value }) => ["div", `${name}: ${format(value)}`]);
    if (found.length > 12) rows.push(["div", `and ${found.length - 12} more lines`]);
    showTip({ clientX: bounds.left + left, clientY: bounds.top + top }, [["b", `${stat}, ${found[0].when}`], ...rows]);
  }

  width() {
    return Math.max(this.box.clientWidth - 4, 120);
  }

  resize() {
    for (const chart of this.charts) chart.setSize({ width: this.width(), height: chart.height });
  }
}

// Powers of ten where all values are positive; where signs differ, logarithmic to both sides of the small values.
function logScale(data) {
  const sizes = [];
  let [positive, negative] = [false, false];
  for (const column of data.slice(1)) {
    for (const v of column) {
      if (v > 0) positive = true;
      if (v < 0) negative = true;
      if (v) sizes.push(Math.abs(v));
    }
  }
  if (!sizes.length) return {};
  if (positive && !negative) return { distr: 3 };
  sizes.sort((a, b) => a - b);
  // Less than two decades need no logarithm.
  if (sizes[sizes.length - 1] < 100 * sizes[sizes.length >> 1]) return {};
  return { distr: 4, asinh: sizes[sizes.length >> 1] };
}

// Over many powers of ten the lines between them would be a grey area.
function decades(_, ticks) {
  const whole = ticks.filter((v) => v && Math.abs(Math.log10(Math.abs(v)) % 1) < 1e-9);
  return whole.length < 4 ? ticks : ticks.map((v) => (v === 0 || whole.includes(v) ? v : null));
}

function tick(value) {
  if (value === null) return "";
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-3 && size < 1e5) ? String(Number(value.toPrecision(5))) : value.toExponential().replace("e+", "e");
}

// What a line cannot show: values that are no numbers, the clicked step, and anomalies.
function drawExtras(u, lines, options) {
  const { ctx, bbox } = u;
  const ratio = uPlot.pxRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  if (options.step !== null) {
    const x = u.valToPos(options.step, "x", true);
    ctx.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.lineWidth = ratio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
  }
  for (const line of lines) {
    for (let bin = 0; bin < line.type.bins; bin++) {
      const x = u.valToPos(line.type.first[bin], "x", true);
      const value = line.curve.numbers[bin];
      if (line.curve.bits[bin] !== MISSING && !Number.isFinite(value)) {
        ctx.fillStyle = Number.isNaN(value) ? SPECIAL.nan : SPECIAL.infinite;
        ctx.fillRect(x - 2 * ratio, bbox.top, 4 * ratio, 8 * ratio);
      }
      if (line.type.marked.has(line.at * line.type.bins + bin)) {
        const y = bbox.top + bbox.height;
        ctx.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bad");
        ctx.beginPath();
        ctx.moveTo(x - 4 * ratio, y);
        ctx.lineTo(x + 4 * ratio, y);
        ctx.lineTo(x, y - 7 * ratio);
        ctx.fill();
      }
    }
  }
  ctx.restore();
}
