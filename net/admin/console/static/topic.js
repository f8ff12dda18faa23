// One topic: its partitions, its messages, its configuration.

import { get, post, query, remove, settings } from "./api.js";
import { configurationTable } from "./configuration.js";
import { asked, badge, confirmed, fill, h, number, size, table, time } from "./dom.js";

const PARTITIONS_EVERY_MS = 2_000;
const TAIL_EVERY_MS = 1_000;
const PAGE = 50;
const LINE = 160; // characters of a value that are shown before it is opened
const MAX_TAIL = 500; // messages on the screen; older ones leave

export function topicPage(context) {
  const [name, tab = "partitions"] = context.rest;
  const tabs = { partitions: partitionsTab, messages: messagesTab, configuration: configurationTab };
  const link = (key) =>
    h("a", { href: `#/topics/${encodeURIComponent(name)}/${key}`, "aria-current": key === tab ? "page" : undefined }, key);
  context.main.append(h("nav", { class: "tabs", "aria-label": "Parts of the topic" }, Object.keys(tabs).map(link)));
  (tabs[tab] || partitionsTab)(context, name);
}

function partitionsTab(context, name) {
  const section = h("section");
  let before = null;
  context.main.append(section, settings.can_change && deletion(context, name));
  const lookNow = context.every(PARTITIONS_EVERY_MS, async () => {
    const topic = await get("topics", name, "overview");
    if (!context.isHere) return;
    context.works();
    const now = Date.now();
    const rates = rate(before, topic.partitions, now);
    before = { at: now, ends: ends(topic.partitions) };
    const busiest = Math.max(0, ...rates.values());
    const total = [...rates.values()].reduce((sum, item) => sum + item, 0);
    fill(section, table(`${topic.partitions.length} partitions, id ${topic.topic_id}`, [
      ["Partition", (row) => row.partition_id, "number"],
      ["Leader", (row) => (row.leader < 0 ? badge("none", "bad") : row.leader)],
      ["Replicas", (row) => row.replicas.map((node) => [replica(row, node), " "])],
      ["Start", (row) => number(row.start_offset), "number"],
      ["End", (row) => number(row.end_offset), "number"],
      ["Size", (row) => h("span", { title: row.sizes.map((item) => `broker ${item.broker_id}: ${size(item.size_bytes)}`).join(", ") },
        size(row.size_bytes)), "number"],
      ["Records/s", (row) => rateCell(rates.get(row.partition_id), busiest, total, topic.partitions.length), "number"],
      ...(settings.can_change ? [["", (row) => moving(context, name, row)]] : []),
    ], topic.partitions));
  });
  // Leaders and replicas are shown as soon as the broker tells that something is different.
  let seen = "";
  context.onOverview((overview) => {
    const now = JSON.stringify([overview.brokers.map((item) => item.state), overview.topics.find((item) => item.topic_name === name)]);
    if (seen && seen !== now) lookNow();
    seen = now;
  });
}

const ends = (partitions) => new Map(partitions.map((row) => [row.partition_id, row.end_offset]));

function rate(before, partitions, now) {
  if (!before) return new Map();
  return new Map(partitions.map((row) => {
    const old = before.ends.get(row.partition_id);
    const more = row.end_offset === null || old === null || old === undefined ? 0 : row.end_offset - old;
    return [row.partition_id, Math.max(0, (more * 1000) / (now - before.at))];
  }));
}

// A partition is hot that gets twice its share.
function rateCell(value, busiest, total, count) {
  if (value === undefined) return "…";
  const isHot = count > 1 && value === busiest && value > 10 && value > (2 * total) / count;
  return [number(Math.round(value)), isHot && [" ", badge("hot", "warn")]];
}

function replica(row, node) {
  if (row.offline.includes(node)) return badge(`${node} offline`, "bad");
  if (row.adding.includes(node)) return badge(`${node} arriving`, "");
  if (row.removing.includes(node)) return badge(`${node} leaving`, "");
  return row.isr.includes(node) ? badge(node, "good") : badge(`${node} behind`, "warn");
}

// Begins a move. The form stays open while the table is drawn again.
function moving(context, name, row) {
  return h("button", {
    "aria-label": `Move partition ${row.partition_id}`,
    onclick: () => {
      const to = h("input", {
        required: true, value: row.replicas.join(", "), pattern: "\\s*\\d+(\\s*,\\s*\\d+)*\\s*", "aria-label": "Brokers, the preferred leader first",
      });
      const limit = h("input", { type: "number", min: 0, value: 0, "aria-label": "MiB per second for each broker; 0: no limit" });
      asked(`Move ${name}-${row.partition_id}`, [
        h("label", {}, "Brokers, the preferred leader first", to), h("label", {}, "MiB per second for each broker; 0: no limit", limit),
      ], "Move", async () => {
        await post(["topics", name, "partitions", row.partition_id, "reassignment"], {
          replicas: to.value.split(",").map(Number), throttle_bytes_per_s: Number(limit.value) * 1_048_576,
        });
        context.works();
      });
    },
  }, "Move");
}

function deletion(context, name) {
  return h("button", {
    class: "danger",
    onclick: async () => {
      if (!(await confirmed(`Delete the topic ${name} with all of its records? This cannot be undone.`, "Delete the topic"))) return;
      try { await remove("topics", name); location.hash = "#/topics"; } catch (error) { context.fail(error); }
    },
  }, "Delete the topic");
}

// --- messages

function messagesTab(context, name) {
  const partition = h("select", { "aria-label": "Partition" });
  const where = h("select", { "aria-label": "Where to begin", onchange: () => { at.hidden = ["last", "start"].includes(where.value); } },
    [["last", "the last ones"], ["start", "the start"], ["offset", "an offset"], ["timestamp_ms", "a time"]]
      .map(([value, text]) => h("option", { value }, text)));
  const at = h("input", { hidden: true, "aria-label": "Offset, or a time such as 2026-11-27T12:00Z" });
  const filter = h("input", { type: "search", placeholder: "filter by text", "aria-label": "Filter by text", oninput: () => draw() });
  const key = h("input", { type: "search", placeholder: "only this key", "aria-label": "Only this key" });
  const keyAs = settings.has_registry && h("select", { "aria-label": "The key is" },
    [["key", "text"], ["key_json", "JSON of its schema"]].map(([value, text]) => h("option", { value }, text)));
  const format = h("select", { "aria-label": "Format", onchange: () => draw() },
    ["auto", "JSON", "text", "hex"].map((value) => h("option", { value }, value)));
  const newestFirst = h("input", { type: "checkbox", checked: true, onchange: () => draw() });
  const tail = h("input", { type: "checkbox", onchange: () => { following = tail.checked; } });
  const list = h("section", { class: "messages" });
  const note = h("p", { class: "soft", role: "status" });
  let rows = [];
  let next = null; // the query of the next page
  let following = false;
  let sameKey = null; // base64
  let keySchema = null; // of the key that was typed as JSON

  function draw() {
    const found = rows.filter((row) => !filter.value || JSON.stringify([row.key, row.value, row.headers]).includes(filter.value));
    fill(list, table(`${found.length} of ${rows.length} messages that are read`, [
      ["Offset", (row) => row.offset, "number"],
      ["Time", (row) => h("span", { class: "mono" }, time(row.timestamp_ms)), "when"],
      ["Key", (row) => data(row.key, format.value, "no key"), "key"],
      ["Value", (row) => [data(row.value, format.value, "tombstone"), headers(row, format.value)], "value"],
      ["", (row) => [canFind(row) && h("button", { onclick: () => readKeyOf(row) }, "Same key"), " ",
        settings.can_change && h("button", { onclick: () => produce.edit(row) }, "Edit")], "actions"],
    ], newestFirst.checked ? [...found].reverse() : found, "no messages"));
  }

  // A key that is no text is found by its bytes: by those of a message that has it, or that the broker writes with its schema.
  function wantedKey() {
    if (sameKey !== null) return { key_base64: sameKey };
    return key.value ? { key: key.value } : {};
  }

  const canFind = (row) => row.key && !row.key.cut;

  function readKeyOf(row) {
    key.value = "";
    keySchema = null;
    sameKey = base64Of(row.key);
    return read({ offset: 0 }, false);
  }

  async function read(parameters, isMore) {
    try {
      const page = await query(["topics", name, "partitions", partition.value || "0", "records"], {
        limit: PAGE, ...wantedKey(), ...(settings.has_registry && { decode: "registry" }), ...parameters });
      if (!context.isHere) return;
      context.works();
      rows = isMore ? [...rows, ...page.data].slice(-MAX_TAIL) : page.data;
      next = { offset: page.next_offset, topic_id: page.topic_id };
      note.textContent = `offsets ${page.start_offset} to ${page.end_offset - 1}; next: ${page.next_offset}${ofOneKey()}`;
      draw();
    } catch (error) { context.fail(error); }
  }

  function ofOneKey() {
    if (keySchema !== null) return `; of one key only, written with schema ${keySchema}`;
    return sameKey === null ? "" : "; of one key only, Read shows all";
  }

  function target() {
    if (where.value === "last") return { last: PAGE };
    if (where.value === "start") return { offset: 0 };
    if (where.value === "offset") return { offset: at.value.trim() };
    const ms = /^\d+$/.test(at.value.trim()) ? Number(at.value) : Date.parse(at.value);
    if (Number.isNaN(ms)) throw new Error(`${at.value} is not a time; use a form such as 2026-11-27T12:00Z`);
    return { timestamp_ms: ms };
  }

  const go = async (event) => {
    event?.preventDefault();
    if (event) sameKey = keySchema = null;
    try {
      if (event && key.value) { // where producers put it, if they choose partitions as Kafka's do
        const found = await query(["topics", name, "barnabas", "partition"], { [keyAs ? keyAs.value : "key"]: key.value });
        partition.value = found.partition_id;
        if (found.schema_id !== undefined) [sameKey, keySchema] = [found.key_base64, found.schema_id];
      }
      await read(key.value && where.value === "last" ? { offset: 0 } : target(), false);
    } catch (error) { context.fail(error); }
  };
  const produce = producing(context, name, go);
  context.main.append(
    h("form", { onsubmit: go },
      h("label", {}, "Partition", partition), h("label", {}, "From", where), at, h("button", { class: "primary" }, "Read"),
      h("button", { type: "button", onclick: () => next !== null && read(next, true) }, "More"),
      h("label", { class: "inline" }, tail, "follow"), h("label", { class: "inline" }, newestFirst, "newest first"),
       h("label", {}, "Show as", format), key, keyAs, filter),
    note, list, settings.can_change && produce.section);
  context.onOverview((overview) => {
    const topic = overview.topics.find((item) => item.topic_name === name);
    if (topic && partition.options.length !== topic.partitions) {
      const chosen = partition.value;
      fill(partition, Array.from({ length: topic.partitions }, (_, index) => h("option", { value: index }, index)));
      partition.value = chosen || "0";
    }
  });
  go();
  context.every(TAIL_EVERY_MS, async () => {
    if (following && next !== null) await read(next, true);
  });
}

function bytesOf(cell) {
  if (cell.text !== undefined) return new TextEncoder().encode(cell.text);
  return Uint8Array.from(atob(cell.base64), (char) => char.charCodeAt(0));
}

function base64Of(cell) {
  return cell.base64 ?? btoa(Array.from(bytesOf(cell), (byte) => String.fromCharCode(byte)).join(""));
}

function shown(cell, format) {
  if (format === "hex" || (cell.text === undefined && format !== "text")) {
    return [...bytesOf(cell)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  }
  const text = cell.text ?? new TextDecoder().decode(bytesOf(cell));
  return format === "JSON" ? pretty(text) : text;
}

function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function data(cell, format, empty) {
  if (cell === null) return h("span", { class: "soft" }, empty);
  if (format === "auto" && cell.decoded !== undefined) return decoded(cell);
  const text = shown(cell, format);
  const rest = [cell.cut && h("span", { class: "soft" }, `the start of ${size(cell.size)}`),
    cell.undecoded && h("span", { class: "soft" }, `not decoded: ${cell.undecoded}`)];
  const line = text.length > LINE ? `${text.slice(0, LINE)}…` : text;
  if (format !== "auto") return [h("pre", {}, text), rest];
  const whole = pretty(text);
  if (whole === line) return [h("pre", {}, text), rest];
  return h("details", {}, h("summary", {}, h("span", { class: "line" }, line)), h("pre", {}, whole), rest);
}

// As the schema registry of the broker has it.
function decoded(cell) {
  const line = JSON.stringify(cell.decoded);
  const whole = JSON.stringify(cell.decoded, null, 2);
  const schema = h("span", { class: "soft" }, `schema ${cell.schema_id}`);
  if (whole.length < LINE) return [h("pre", {}, line), schema];
  return h("details", {}, h("summary", {}, h("span", { class: "line" }, line.length > LINE ? `${line.slice(0, LINE)}…` : line)), h("pre", {}, whole), schema);
}

function headers(row, format) {
  const items = row.headers;
  if (!items.length) return null;
  const count = row.headers_cut ? `the first ${items.length} of ${row.headers_cut} headers` : `${items.length} headers`;
  return h("details", {}, h("summary", {}, count),
    items.map((item) => h("div", { class: "mono" }, item.name, ": ", data(item.value, format, "null"))));
}

function producing(context, name, done) {
  const key = h("textarea", { "aria-label": "Key", placeholder: "no key" });
  const value = h("textarea", { "aria-label": "Value" });
  const tombstone = h("input", { type: "checkbox" });
  const note = h("p", { class: "soft", role: "status" });
  const kept = new Map(); // a field -> the bytes in base64 that are written as they are
  const written = (field) => (kept.has(field) ? { type: "BINARY", data: kept.get(field) } : { type: "STRING", data: field.value });
  const section = h("section", {}, h("h2", {}, "Produce a message"), h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        const body = { value: tombstone.checked ? null : written(value) };
        if (key.value || kept.has(key)) body.key = written(key);
        const told = await post(["topics", name, "records"], body);
        note.textContent = `written to partition ${told.partition_id} at offset ${told.offset}`;
        done();
      } catch (error) { context.fail(error); }
    },
  }, h("label", {}, "Key", key), h("label", {}, "Value", value), h("label", { class: "inline" }, tombstone, "tombstone"),
  h("button", { class: "primary" }, "Produce"),
  h("button", { type: "button", onclick: () => { fillIn(key, null); fillIn(value, null); tombstone.checked = false; note.textContent = ""; } }, "Clear")), note);
  // What is no text for people cannot be edited as text: its bytes are written again.
  function fillIn(field, cell) {
    const isPlain = !cell || (cell.text !== undefined && cell.decoded === undefined && !/[\0\r]/.test(cell.text));
    kept.delete(field);
    if (!isPlain && !cell.cut) kept.set(field, base64Of(cell));
    field.readOnly = kept.has(field);
    field.value = !cell || (!isPlain && cell.cut) ? "" : isPlain ? cell.text : cell.decoded === undefined ? shown(cell, "hex") : JSON.stringify(cell.decoded);
  }
  const edit = (row) => {
    fillIn(key, row.key);
    fillIn(value, row.value);
    tombstone.checked = row.value === null;
    value.focus();
    const isWhole = !row.key?.cut && !row.value?.cut;
    note.textContent = [
      kept.size ? "what is binary is written again as it is" : "",
      isWhole ? "" : "this message is too large: only its start is here",
      row.headers.length ? "its headers are not written again" : "",
    ].filter(Boolean).join("; ");
  };
  return { section, edit };
}

// --- configuration

function configurationTab(context, name) {
  configurationTable(context, ["topics", name, "configs"]);
}
