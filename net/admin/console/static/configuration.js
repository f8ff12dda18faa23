// Configurations: of a topic, of a broker, and the defaults of the cluster.

import { get, put, remove, settings } from "./api.js";
import { badge, fill, h, table } from "./dom.js";

const SOURCES = {
  DYNAMIC_TOPIC_CONFIG: "topic", dynamic: "set while running",
  STATIC_BROKER_CONFIG: "file", DEFAULT_CONFIG: "default",
};
const OWN = ["DYNAMIC_TOPIC_CONFIG", "dynamic"];

// parts: the path of the configuration. Answers with what draws another one.
export function configurationTable(context, parts) {
  const section = h("section");
  const filter = h("input", { type: "search", placeholder: "filter", "aria-label": "Filter keys", oninput: () => draw() });
  let entries = [];
  context.main.append(h("div", { class: "bar" }, filter), section);
  const load = async () => {
    try {
      const { data } = await get(...parts);
      if (!context.isHere) return;
      entries = parts[0] === "broker-configs" ? data.filter((row) => !row.is_read_only) : data; // the others are of one broker each
      context.works();
      draw();
    } catch (error) { context.fail(error); }
  };
  const draw = () => fill(section, table("Configuration", [
    ["Key", (row) => [h("strong", {}, row.name), h("div", { class: "soft" }, row.documentation)]],
    ["Value", (row) => h("span", { class: "mono" }, row.is_sensitive ? "hidden" : row.value ?? "",
      !row.is_default && row.default_value !== row.value && h("div", { class: "soft" }, `default: ${row.default_value ?? "none"}`)), "value"],
    ["Source", (row) => badge(SOURCES[row.source] || row.source, OWN.includes(row.source) ? "good" : "")],
    ["", (row) => settings.can_change && !row.is_read_only && editing(context, parts, row, load)],
  ], entries.filter((row) => `${row.name} ${row.value ?? ""}`.includes(filter.value)), "no keys"));
  load();
  return (other) => { parts = other; load(); };
}

function editing(context, parts, row, done) {
  const change = async (work) => { try { await work(); await done(); } catch (error) { context.fail(error); } };
  const open = () => {
    const input = h("input", { value: row.value ?? "", "aria-label": `Value of ${row.name}` });
    fill(place, h("form", {
      class: "bar",
      onsubmit: (event) => { event.preventDefault(); change(() => put([...parts, row.name], { value: input.value })); },
    }, input, h("button", { class: "primary" }, "Set"),
    OWN.includes(row.source) && h("button", { type: "button", onclick: () => change(() => remove(...parts, row.name)) }, "Reset")));
    input.focus();
  };
  const place = h("div", {}, h("button", { onclick: open, "aria-label": `Edit ${row.name}` }, "Edit"));
  return place;
}

export function configurationPage(context) {
  const of = h("select", { "aria-label": "Whose configuration", onchange: () => show(of.value ? ["brokers", of.value, "configs"] : ["broker-configs"]) },
    h("option", { value: "" }, "the cluster"));
  context.main.append(h("div", { class: "bar" }, h("label", {}, "Of", of)));
  const show = configurationTable(context, ["broker-configs"]);
  context.onOverview(({ brokers }) => {
    const known = [...of.options].map((option) => option.value).join();
    const nodes = ["", ...brokers.map((broker) => String(broker.broker_id))];
    if (known === nodes.join()) return;
    const chosen = of.value;
    fill(of, nodes.map((node) => h("option", { value: node }, node ? `broker ${node}` : "the cluster")));
    of.value = nodes.includes(chosen) ? chosen : "";
  });
}
