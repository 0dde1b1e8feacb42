// Wires the page: panels on top, the choosers, the heat map and the curves.

const state = { type: null, stat: null, view: -1, mode: "value", chosen: new Map(), also: new Set(), step: null };
let page, types, map, curves;

function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== "") node.textContent = text;
  return node;
}

function label([pp, vpp, name]) {
  const shown = name || "(whole model)";
  return page.stages ? `pp${pp}/${vpp}:${shown}` : shown;
}

function showTip(event, rows) {
  const tip = byId("tip");
  tip.replaceChildren(...rows.map(([tag, text, className]) => element(tag, className, text)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + height + 22 > window.innerHeight ? event.clientY - height - 10 : event.clientY + 14}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

function fail(error) {
  const box = byId("fatal");
  box.hidden = false;
  box.textContent = `This page cannot be shown: ${error.message || error}`;
  console.error(error);
}

function panel(one) {
  const box = element("details", one.columns.length ? "panel wide" : "panel");
  box.id = `panel-${one.id}`;
  box.open = one.open;
  box.append(element("summary", "", one.title));
  one.text.forEach((text, i) => box.append(element("p", i ? "" : one.lead, text)));
  if (one.facts.length) {
    const list = element("dl");
    for (const [name, value] of one.facts) list.append(element("dt", "", name), element("dd", "", value));
    box.append(list);
  }
  if (one.rows.length) box.append(table(one));
  return box;
}

function table(one) {
  const holder = element("div", "scroll");
  const node = element("table");
  const numeric = one.columns.map((_, i) => one.rows.every((row) => typeof row[i] === "number"));
  const short = one.columns.map((_, i) => one.rows.every((row) => String(row[i]).length <= 16));
  const head = node.createTHead().insertRow();
  one.columns.forEach((name, i) => head.append(element("th", numeric[i] ? "number" : short[i] ? "short" : "", name)));
  const body = node.createTBody();
  one.rows.forEach((row, i) => {
    const line = body.insertRow();
    row.forEach((cell, j) => line.append(element("td", numeric[j] ? "number" : short[j] ? "short" : "", String(cell))));
    const link = one.links[i];
    if (!link) return;
    line.className = "link";
    line.tabIndex = 0;
    line.title = "Show it in the heat map";
    line.addEventListener("click", () => follow(link).catch(fail));
    line.addEventListener("keydown", (event) => event.key === "Enter" && follow(link).catch(fail));
  });
  holder.append(node);
  return holder;
}

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

function choose(at, bin, add) {
  const id = state.type.ids[at];
  if (!add) state.chosen.clear();
  state.chosen.set(id, page.names[id]);
  state.step = state.type.first[bin];
  state.also.add(state.type.name);
  if (!add) {
    // Before and after reduction belong together.
    state.also = new Set([state.type.name]);
    const pair = { grad_unreduced: "grad_reduced", grad_reduced: "grad_unreduced" }[state.type.name];
    if (pair && types.some((type) => type.name === pair && type.position.has(id))) state.also.add(pair);
  }
  showCurves();
}

function showCurves() {
  map.chosen = state.chosen;
  map.draw();
  const any = state.chosen.size > 0;
  byId("clear").hidden = !any;
  byId("chosen").replaceChildren(...[...state.chosen].map(([id, name]) => {
    const chip = element("span", "chip", label(name));
    const button = element("button", "", "✕");
    button.title = "Take it away";
    button.addEventListener("click", () => { state.chosen.delete(id); showCurves(); });
    chip.append(button);
    return chip;
  }));
  const having = types.filter((type) => [...state.chosen.keys()].some((id) => type.position.has(id)));
  byId("types").replaceChildren(...(having.length > 1 ? having : []).map((type) => {
    const box = element("label");
    const input = element("input");
    input.type = "checkbox";
    input.checked = state.also.has(type.name);
    input.value = type.name;
    input.addEventListener("change", () => {
      if (input.checked) state.also.add(type.name);
      else state.also.delete(type.name);
      showCurves();
    });
    box.append(input, type.name);
    return box;
  }));
  const entries = lineEntries(having.filter((type) => state.also.has(type.name)));
  byId("lines").replaceChildren(...(entries.length > 1 && entries.length <= 40 ? entries : []).map(lineButton));
  byId("curves-note").textContent = curvesNote(entries, any);
  const stats = [...new Set(having.flatMap((type) => Object.keys(type.stats)))];
  stats.sort((a, b) => (b === state.stat) - (a === state.stat));
  curves.show(entries, stats, { log: byId("log").checked, step: any ? state.step : null }).catch(fail);
}

function lineEntries(shown) {
  const entries = [];
  const several = state.chosen.size > 1;
  [...state.chosen].forEach(([id, name], number) => {
    shown.forEach((type, order) => {
      const at = type.position.get(id);
      if (at === undefined) return;
      const kept = type.detailOf[at] >= 0;
      (kept ? type.lines : [page.worst_label]).forEach((line, i) => {
        // Runs differ by colour, ranks too where there is one tensor; several tensors share the colours of theirs.
        const color = LINE_COLORS[(several ? number : kept ? type.colors[i] : 0) % LINE_COLORS.length];
        const parts = [several ? label(name) : "", shown.length > 1 ? type.name : "", kept && type.lines.length === 1 ? "" : line];
        entries.push({
          type, at, line: kept ? i : -1, color, dash: DASHES[(order + (several ? type.dashes[i] || 0 : 0)) % DASHES.length], kept,
          key: `${id} ${type.name} ${i}`, name: parts.filter(Boolean).join(" · ") || label(name),
        });
      });
    });
  });
  return entries;
}

function lineButton(entry) {
  const button = element("button", curves.hidden.has(entry.key) ? "line off" : "line");
  const stroke = element("i", ["", "dash", "dot"][DASHES.indexOf(entry.dash)] || "");
  stroke.style.borderColor = entry.color;
  button.append(stroke, entry.name);
  button.title = "Hide or show";
  button.addEventListener("click", () => {
    if (!curves.hidden.delete(entry.key)) curves.hidden.add(entry.key);
    showCurves();
  });
  return button;
}

function curvesNote(entries, any) {
  if (!any) return "Click a cell of the heat map for the curves of its tensor; hold Ctrl or Shift to add another tensor.";
  const notes = [];
  if (entries.some((entry) => !entry.kept)) {
    notes.push(`To keep this page small it holds only the ${page.worst_label.toLowerCase()} of this tensor. For the rest: msmon report RUN --tensors '${[...state.chosen.values()].map(([, , name]) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")}'.`);
  }
  if (entries.some((entry) => entry.type.first.some((first, i) => first !== entry.type.last[i]))) {
    notes.push("Each point is the worst value of several steps.");
  }
  if (entries.some(({ type }) => type.micro)) notes.push("Of several micro-steps the worst is shown.");
  notes.push("Drag to zoom, double click to zoom out.");
  return notes.join(" ");
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
