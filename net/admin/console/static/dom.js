// Builds elements. Data becomes text, never markup: nothing here takes HTML.

export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

export const badge = (text, kind) => h("span", { class: `badge ${kind || ""}` }, text);
export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
export const time = (ms) => (ms > 0 ? new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z/, "Z") : "–");

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
}

// columns: [title, function of the row, class]; the first column names the row.
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "soft" }, empty || "none");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(([title, , kind]) =>
        h("th", { scope: "col", class: kind }, title || h("span", { class: "hidden" }, "Actions"))))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, cell, kind]) => h("td", { class: kind }, cell(row))))))));
}

export const card = (label, value, isBad) =>
  h("div", { class: isBad ? "card bad" : "card" }, h("div", { class: "value" }, value), h("div", { class: "label" }, label));

function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// A line for each of `series` ({ name, points: [[ms, value or null], ...] }) between two times; a legend has the newest values.
// A line has a gap where nothing was measured for longer than `gap`.
export function lines(series, { title, show, begin, end, gap }) {
  const top = Math.max(0, ...series.flatMap((item) => item.points.map(([, value]) => value ?? 0)));
  const root = svg("svg", {
    class: "chart", viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: ${series.map((item) => `${item.name} ${show(item.points.at(-1)?.[1])}`).join(", ")}`,
  });
  root.append(svg("line", { x1: 0, y1: 39.5, x2: 100, y2: 39.5 }));
  series.forEach((item, index) => {
    let part = [];
    const close = () => {
      if (part.length === 1) part.push(part[0].replace(/^[\d.]+/, (x) => Number(x) + 0.3)); // a line needs two points
      if (part.length) root.append(svg("polyline", { points: part.join(" "), class: `line-${index % 6}` }));
      part = [];
    };
    let before = 0;
    for (const [at, value] of item.points) {
      if (value === null || at - before > gap) close();
      if (value !== null && at >= begin) {
        part.push(`${((100 * (at - begin)) / (end - begin)).toFixed(2)},${(38 - (top ? value / top : 0) * 35).toFixed(2)}`);
      }
      before = at;
    }
    close();
  });
  return [
    h("div", { class: "axis soft" }, h("span", {}, `up to ${show(top)}`)),
    root,
    h("div", { class: "axis soft" }, h("span", {}, `${Math.round((end - begin) / 60_000)} min ago`), h("span", {}, "now")),
    h("ul", { class: "legend" }, series.map((item, index) =>
      h("li", { class: `line-${index % 6}` }, `${item.name}: ${show(item.points.at(-1)?.[1])}`))),
  ];
}

// A form in a dialog. It closes when `work` is done, and shows its error otherwise.
export function asked(title, fields, action, work) {
  const failure = h("p", { class: "notice bad", role: "alert", hidden: true });
  const close = () => { dialog.close(); dialog.remove(); };
  const dialog = h("dialog", { "aria-label": title, oncancel: () => dialog.remove() }, h("h2", {}, title), failure, h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      try { await work(); close(); } catch (error) { failure.hidden = false; failure.textContent = error.message; }
    },
  }, fields, h("div", { class: "bar" }, h("button", { class: "primary" }, action), h("button", { type: "button", onclick: close }, "Cancel"))));
  document.body.append(dialog);
  dialog.showModal();
}

// Asks before something is done; resolves to true or false.
export function confirmed(question, action) {
  return new Promise((resolve) => {
    const close = (answer) => { dialog.close(); dialog.remove(); resolve(answer); };
    const dialog = h("dialog", { "aria-label": action, oncancel: () => close(false) },
      h("p", {}, question),
      h("div", { class: "bar" },
        h("button", { class: "danger", onclick: () => close(true) }, action),
        h("button", { onclick: () => close(false) }, "Cancel")));
    document.body.append(dialog);
    dialog.showModal();
  });
}
