// Wires the page: the choosers, the heat map and the curves.

const state = { type: null, stat: null, view: -1, mode: "value", chosen: new Map(), also: new Set(), step: null };
let page, types, map, curves;

// A row of a table leads to its tensor and step.
async function follow(link) {
  const type = types.find((one) => one.name === link.type);
  if (!type) return;
  const id = page.names.findIndex(([pp, vpp, name]) => pp === link.pp && vpp === link.vpp && name === link.name);
  const at = type.position.get(id);
  if (at === undefined) return;
  byId("search").value = "";
  map.filter = null;
  state.type = type;
  if (link.stat && type.stats[link.stat]) state.stat = link.stat;
  await showType();
  let bin = type.last.findIndex((last) => last >= link.step);
  if (bin < 0) bin = type.bins - 1;
  map.pick(at, bin, false);
  byId("explorer").scrollIntoView({ block: "start", behavior: "smooth" });
}

function options(select, entries, value) {
  select.replaceChildren(...entries.map(([key, text]) => {
    const option = element("option", "", text);
    option.value = key;
    return option;
  }));
  select.value = value;
}

async function showType() {
  const { type } = state;
  byId("type").value = type.name;
  const stats = Object.keys(type.stats);
  if (!stats.includes(state.stat)) state.stat = type.preferred;
  options(byId("stat"), stats.map((stat) => [stat, stat]), state.stat);
  if (state.view >= type.lines.length) state.view = -1;
  options(byId("view"), [[-1, page.worst_label], ...(page.kind === "report" ? type.lines.map((line, i) => [i, line]) : [])], state.view);
  byId("view-label").hidden = page.kind !== "report" || type.lines.length < 2;
  byId("mode-label").hidden = page.kind !== "report";
  await showMap();
}

async function showMap() {
  const { type, stat, view } = state;
  const mode = page.kind === "report" ? state.mode : "excess";
  const plane = await type.plane(stat, view);
  // Another choice was made meanwhile.
  if (type !== state.type || stat !== state.stat || view !== state.view) return;
  const coded = encode(plane, type.tensors.length, type.bins, page.kind === "report" ? type.stats[stat].scale : "log", mode);
  const stops = { value: VALUE_STOPS, change: CHANGE_STOPS, excess: EXCESS_STOPS }[mode];
  const empty = getComputedStyle(document.documentElement).getPropertyValue("--empty").trim();
  map.partly = view >= 0 && type.detailed < type.tensors.length;
  map.show(type, stat, plane, coded, palette(stops, empty));
  if (view >= 0 && type.layerLines) await showLayers(type, stat, view, coded);
  legend(coded, stops, empty);
  byId("map-note").textContent = mapNote(type, view);
}

// A single rank of a large run: rows of whole layers are there, and tensors only where they are kept in detail.
async function showLayers(type, stat, view, coded) {
  const lines = await type.array(stat, "layers");
  const count = type.layers.length * type.bins;
  const plane = new Values(lines.bits.slice(view * count, (view + 1) * count));
  const fixed = encode(plane, type.layers.length, type.bins, type.stats[stat].scale, coded.mode);
  map.layers = type.layers.map((_, i) => fixed.codes.subarray(i * type.bins, (i + 1) * type.bins));
  map.draw();
}

function mapNote(type, view) {
  if (page.kind !== "report") return "Click a cell for the curves of both runs; a row of a layer opens its worst tensor.";
  const what = view < 0 ? page.worst_label.toLowerCase() : type.lines[view];
  const kept = view >= 0 && type.detailed < type.tensors.length
    ? ` Single ranks are kept for ${type.detailed} of ${type.tensors.length} tensors${type.layerLines ? " and for whole layers" : ""}.` : "";
  return `${type.tensors.length} tensors, ${what}.${kept} Click a cell for its curves; a click on a layer's name opens the layer.`;
}

function legend(coded, stops, empty) {
  const box = byId("legend");
  box.replaceChildren();
  const scale = element("span", "scale");
  const canvas = element("canvas");
  canvas.width = 160;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  for (let x = 0; x < 160; x++) {
    context.fillStyle = `rgb(${mix(stops, x / 159).join(",")})`;
    context.fillRect(x, 0, 1, 1);
  }
  const end = (v) => (coded.log ? format(10 ** v) : format(v));
  let [low, high] = [`≤ ${end(coded.low)}`, `≥ ${end(coded.high)}`];
  if (coded.mode === "change") {
    const log = state.type.stats[state.stat].scale !== "linear";
    [low, high] = log ? ["1/100 of its median", "100 times"] : ["−0.5", "+0.5 above its median"];
  }
  if (coded.mode === "excess") [low, high] = ["a tenth of the tolerance", "1000 times"];
  scale.append(low, canvas, high);
  box.append(scale);
  const swatch = (color, text) => {
    const item = element("span");
    const square = element("i", "swatch");
    square.style.background = color;
    item.append(square, text);
    box.append(item);
  };
  if (coded.log) swatch(SPECIAL.zero, coded.mode === "excess" ? "equal" : "0");
  if (coded.mode !== "excess") swatch(SPECIAL.nan, "NaN");
  swatch(SPECIAL.infinite, coded.mode === "excess" ? "NaN or Inf on one side" : "Inf");
  swatch(empty, "no value");
  if (state.type.marked.size) box.append(element("span", "", `▽ ${page.mark_label}`));
}

async function hover({ event, at, bin, layer }) {
  const { type, stat, view } = state;
  const cell = at * type.bins + bin;
  const rows = [["b", label(type.tensors[at])]];
  if (layer !== null) rows.push(["div", `the worst of ${layer}`]);
  const kept = !(map.partly && type.detailOf[at] < 0);
  const text = !kept ? "not kept for single ranks" : map.plane.bits[cell] === MISSING ? "no value" : format(map.plane.numbers[cell]);
  rows.push(["div", page.kind === "report" ? `${stat} ${text} at ${type.steps(bin)}` : `${stat}: ${text} times the tolerance at ${type.steps(bin)}`]);
  if (type.first[bin] !== type.last[bin]) rows.push(["div", "the worst value of these steps"]);
  if (page.kind === "report" && view < 0 && type.lines.length > 1) {
    const line = await type.worstLine(stat, at, bin);
    if (line >= 0) rows.push(["div", `${type.lines[line]} is the worst`]);
  }
  if (type.marked.has(cell)) rows.push(["div", page.mark_label, "bad"]);
  showTip(event, rows);
}

function search() {
  const text = byId("search").value.trim();
  byId("search").classList.remove("bad");
  let matches = null;
  if (text) {
    const lower = text.toLowerCase();
    try {
      const pattern = new RegExp(text, "i");
      matches = (name) => name.toLowerCase().includes(lower) || pattern.test(name);
    } catch {
      byId("search").classList.add("bad");
      matches = (name) => name.toLowerCase().includes(lower);
    }
  }
  map.filter = matches && ((at) => matches(label(map.type.tensors[at])));
  map.box.scrollTop = 0;
  map.layout();
  const found = map.rows.filter((row) => row.at !== undefined).length;
  byId("map-note").textContent = text ? `${found} of ${state.type.tensors.length} tensors match. Enter shows the first.` : mapNote(state.type, state.view);
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser is too old: Chrome or Edge 80, Firefox 113, Safari 16.4 or newer can read it");
  }
  const preference = window.matchMedia("(prefers-color-scheme: dark)");
  theme(preference.matches);
  page = JSON.parse(new TextDecoder().decode(await inflate("meta")));
  types = page.types.map((type) => new DataType(type, page.names));
  byId("title").textContent = page.title;
  byId("subtitle").textContent = page.subtitle;
  byId("footer").textContent = page.footer;
  byId("panels").replaceChildren(...page.panels.map(panel));
  byId("fit").replaceChildren(...page.fit.map((text) => element("li", "", text)));
  curves = new Curves();
  map = new HeatMap(choose);
  map.onHover = (place) => hover(place).catch(fail);
  const redraw = () => showMap().then(() => showCurves()).catch(fail);
  byId("theme").addEventListener("click", () => { theme(document.documentElement.dataset.theme !== "dark"); redraw(); });
  preference.addEventListener("change", (event) => { theme(event.matches); redraw(); });
  options(byId("type"), types.map((type) => [type.name, type.name]), page.first);
  options(byId("mode"), [["value", "value"], ["change", "change against the tensor's median"]], "value");
  byId("type").addEventListener("change", (event) => {
    state.type = types.find((type) => type.name === event.target.value);
    map.open.clear();
    openFew();
    showType().then(search).catch(fail);
  });
  byId("stat").addEventListener("change", (event) => { state.stat = event.target.value; redraw(); });
  byId("view").addEventListener("change", (event) => { state.view = Number(event.target.value); showMap().catch(fail); });
  byId("mode").addEventListener("change", (event) => { state.mode = event.target.value; showMap().catch(fail); });
  byId("search").addEventListener("input", search);
  byId("search").addEventListener("keydown", (event) => {
    const first = map.rows.find((row) => row.at !== undefined);
    if (event.key === "Enter" && first) map.pick(first.at, map.cursor ? map.cursor.bin : 0, event.shiftKey);
  });
  byId("expand").addEventListener("click", () => { state.type.layers.forEach((_, i) => map.open.add(i)); map.layout(); });
  byId("collapse").addEventListener("click", () => { map.open.clear(); map.layout(); });
  byId("clear").addEventListener("click", () => { state.chosen.clear(); map.cursor = null; showCurves(); });
  byId("log").addEventListener("change", showCurves);
  state.type = types.find((type) => type.name === page.first);
  if (!state.type) {
    byId("explorer").hidden = true;
  } else {
    openFew();
    await showType();
  }
  document.body.dataset.ready = "yes";
}

// A small model is shown with all its tensors.
function openFew() {
  if (state.type.tensors.length <= 60) state.type.layers.forEach((_, i) => map.open.add(i));
}

start().catch(fail);
