// The upper part of the page, and small things that all parts use. All text goes in as text, never as markup.

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
