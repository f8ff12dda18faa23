// Latencies and load of all brokers in the last hour: each broker remembers its own, in steps of ten seconds.

import { get, query } from "./api.js";
import { fill, h, lines, number, size, table } from "./dom.js";

const EVERY_MS = 10_000;
const HOUR_MS = 3_600_000;
const LEAST_MS = 300_000; // of a chart: a broker that has just started has a short line

const ms = (value) => (value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(2) : Math.round(value)} ms`);
const rate = (value) => (value === null || value === undefined ? "–" : number(value < 10 ? Number(value.toFixed(1)) : Math.round(value)));
const bytesRate = (value) => (value === null || value === undefined ? "–" : `${size(value)}/s`);

// [field, title, how its values are written, what it means]
const CHARTS = [
  ["produce_p99_ms", "Produce, 99 % within", ms, "from the arrival of a request to its answer"],
  ["produce_p50_ms", "Produce, half within", ms, "from the arrival of a request to its answer"],
  ["produce_queue_p99_ms", "Produce: queue", ms, "until a handler has the request; high: the event loop has too much to do"],
  ["produce_log_p99_ms", "Produce: log", ms, "checks and appends; high: the disk or large batches"],
  ["produce_followers_p99_ms", "Produce: followers", ms, "acks=all waits for them; high: their network or disk"],
  ["fetch_log_p99_ms", "Fetch: log", ms, "reads for consumers, without the wait for new records"],
  ["commit_p99_ms", "Quorum commits", ms, "on the controller, until a majority has them; high: a voter's disk or network"],
  ["group_append_p99_ms", "Commits of groups", ms, "offsets and changes of groups, on their coordinators"],
  ["loop_p99_ms", "Event loop late by", ms, "everything on the broker waits as long"],
  ["requests_per_s", "Requests per second", rate, "of clients and brokers"],
  ["errors_per_s", "Errors per second", rate, "that requests were answered with"],
  ["in_per_s", "Received", bytesRate, "by all connections, also from brokers"],
  ["out_per_s", "Sent", bytesRate, "by all connections, also to brokers"],
  ["connections", "Connections", number, "open ones"],
  ["memory_bytes", "Memory", size, "of the process"],
];
const NOW = CHARTS.filter(([field]) => !["connections", "memory_bytes"].includes(field));

export function performancePage(context) {
  const note = h("p", { class: "soft", role: "status" }, "looking…");
  const latest = h("section");
  const charts = h("div", { class: "charts" });
  const points = new Map(); // by broker, the oldest first
  const silent = new Set();
  context.main.append(note, latest, charts);

  function draw() {
    if (!context.isHere) return;
    context.works();
    const brokers = [...points.keys()].sort((a, b) => a - b);
    const end = Math.max(Date.now(), ...brokers.map((node) => points.get(node).at(-1)?.at_ms ?? 0));
    const oldest = Math.min(end, ...brokers.map((node) => points.get(node)[0]?.at_ms ?? end));
    const begin = Math.max(end - HOUR_MS, Math.min(oldest, end - LEAST_MS));
    note.textContent = [
      "The last hour, in steps of ten seconds; brokers remember it until they stop.",
      silent.size ? `No answer from broker ${[...silent].join(", ")}.` : "",
    ].join(" ");
    fill(latest, table("The last ten seconds", [
      ["Broker", (node) => node, "number"],
      ...NOW.map(([field, title, show]) => [title, (node) => show(points.get(node).at(-1)?.[field]), "number"]),
    ], brokers, "no broker has measured anything yet: look again in ten seconds"));
    fill(charts, CHARTS.map(([field, title, show, meaning]) => h("section", {},
      h("h2", {}, title), h("p", { class: "soft" }, meaning),
      lines(brokers.map((node) => ({
        name: `broker ${node}`,
        points: points.get(node).map((point) => [point.at_ms, point[field]]),
      })), { title, show, begin, end, gap: 3 * EVERY_MS }))));
  }

  async function ask(node) {
    const known = points.get(node) ?? [];
    try {
      const parts = ["brokers", node, "barnabas", "history"];
      const { data } = known.length ? await query(parts, { after_ms: known.at(-1).at_ms }) : await get(...parts);
      const all = [...known, ...data];
      points.set(node, all.filter((point) => point.at_ms > all.at(-1).at_ms - HOUR_MS));
      silent.delete(node);
    } catch (error) {
      if (error.status === 403) throw error;
      silent.add(node);
    }
    draw(); // one that is frozen does not hold the others up
  }

  context.every(EVERY_MS, async () => {
    const { data } = await get("brokers");
    await Promise.all(data.map((broker) => ask(broker.broker_id)));
  });
}
