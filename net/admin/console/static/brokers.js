// Brokers, their disks, and partitions on the move.

import { get } from "./api.js";
import { badge, fill, h, number, size, table } from "./dom.js";

const EVERY_MS = 5_000;
const STATES = { active: "good", stopping: "warn", leaving: "warn", fenced: "bad" };

export function brokersPage(context) {
  const list = h("section");
  const disks = h("section");
  const moves = h("section");
  context.main.append(list, disks, moves);
  context.onOverview((overview) => fill(list, table(`${overview.brokers.length} brokers`, [
    ["Broker", (row) => row.broker_id, "number"],
    ["State", (row) => [badge(row.state, STATES[row.state]), row.broker_id === overview.controller_id && [" ", badge("controller", "")]]],
    ["Address", (row) => h("span", { class: "mono" }, row.address)],
    ["Rack", (row) => row.rack ?? "–"],
    ["Machine", (row) => row.machine ?? "–"],
    ["Leaders", (row) => number(row.leaders), "number"],
    ["Replicas", (row) => number(row.replicas), "number"],
  ], overview.brokers)));
  context.every(EVERY_MS, async () => {
    const nodes = (context.live.overview?.brokers ?? []).filter((broker) => broker.state !== "fenced");
    const answers = await Promise.all(nodes.map(async ({ broker_id: node }) => {
      try { return (await get("brokers", node, "barnabas", "folders")).data; } catch { return []; } // it is away
    }));
    const { data: reassignments } = await get("topics", "-", "partitions", "-", "reassignment");
    if (!context.isHere) return;
    context.works();
    fill(disks, table("Data folders", [
      ["Broker", (row) => row.broker_id, "number"],
      ["Folder", (row) => h("span", { class: "mono" }, row.path), "name"],
      ["State", (row) => [badge(row.state, row.state === "online" ? "good" : "bad"), row.cause && ` ${row.cause}`]],
      ["Partitions", (row) => number(row.partitions_count), "number"],
      ["Used", (row) => size(row.size_bytes), "number"],
      ["Free", (row) => size(row.free_bytes), "number"],
    ], answers.flat(), "no broker answers"));
    fill(moves, table("Partitions on the move", [
      ["Topic", (row) => row.topic_name, "name"],
      ["Partition", (row) => row.partition_id, "number"],
      ["To", (row) => row.adding_replicas.join(", ") || "–"],
      ["From", (row) => row.removing_replicas.join(", ") || "–"],
    ], reassignments, "no partition is on the move"));
  });
}
