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

// A line of values over time; the title says what it shows, for those who do not see it.
export function chart(values, title) {
  const top = Math.max(1, ...values);
  if (values.length === 1) values = [values[0], values[0]]; // a line needs two points
  const points = values.map((value, index) => `${(index / (values.length - 1)) * 100},${38 - (value / top) * 34}`);
  const svg = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const root = svg("svg", { class: "chart", viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": title });
  root.append(svg("polyline", { points: points.join(" ") }));
  return root;
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
