// Brokers, their disks, and partitions on the move.

import { get, post, remove, settings } from "./api.js";
import { badge, confirmed, fill, h, number, size, table } from "./dom.js";

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
    ...(settings.can_change ? [["", (row) => actions(context, row)]] : []),
  ], overview.brokers)));
  context.every(EVERY_MS, async () => {
    const overview = context.live.overview ?? await get("overview"); // the first one may be on its way
    const nodes = overview.brokers.filter((broker) => broker.state !== "fenced");
    const answers = await Promise.all(nodes.map(async ({ broker_id: node }) => {
      try { return (await get("brokers", node, "barnabas", "folders")).data; } catch { return []; } // it is away
    }));
    const { data: moving, throttle_bytes_per_s: throttle } = await get("barnabas", "moves");
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
    fill(moves, table(`Partitions on the move${throttle ? `, at most ${size(throttle)}/s for each broker` : ""}`, [
      ["Topic", (row) => row.topic_name, "name"],
      ["Partition", (row) => row.partition_id, "number"],
      ["To", (row) => row.adding_replicas.join(", ") || "–"],
      ["From", (row) => row.removing_replicas.join(", ") || "–"],
      ["Left to copy", (row) => size(left(row)), "number"],
      ...(settings.can_change ? [["", (row) => button("Cancel", context, `Cancel the move of ${row.topic_name}-${row.partition_id}?`,
        () => remove("topics", row.topic_name, "partitions", row.partition_id, "reassignment"))]] : []),
    ], moving, "no partition is on the move"));
  });
}

// Null: a leader was not asked, or does not know.
function left(move) {
  const sizes = move.catching_up.map((item) => item.bytes_left);
  return sizes.includes(null) ? null : sizes.reduce((sum, bytes) => sum + bytes, 0);
}

function button(label, context, question, work) {
  return h("button", {
    onclick: async () => {
      if (!(await confirmed(question, label))) return;
      try { await work(); context.works(); } catch (error) { context.fail(error); }
    },
  }, label);
}

// What fits the state of a broker. A decommissioned broker is emptied, then drained, then removed.
function actions(context, { broker_id: node, state, replicas }) {
  const own = (action) => ["brokers", node, "barnabas", action];
  const found = [];
  if (state === "active" || state === "leaving") {
    found.push(button("Drain", context, `Broker ${node} hands over what it leads, and stops. Start it again by hand.`, () => post(own("drain"))));
  }
  if (state === "active") {
    found.push(button("Decommission", context, `Move all replicas of broker ${node} to others? It can be cancelled.`, () => post(own("decommission"))));
  }
  if (state === "leaving") found.push(button("Keep", context, `Cancel the decommission of broker ${node}?`, () => remove(...own("decommission"))));
  if (state === "fenced" && !replicas) {
    found.push(button("Remove", context, `Remove broker ${node} from the cluster? It holds no replicas.`, () => remove("brokers", node)));
  }
  return h("div", { class: "bar" }, found);
}
