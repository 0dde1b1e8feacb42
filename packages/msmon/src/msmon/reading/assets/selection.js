// The chosen tensors: which lines their curves have, and what is said about them.

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
