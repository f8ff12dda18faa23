// A share group: its members, how far it is in each partition, what members hold, and records that were given out again.

import { get, settings } from "./api.js";
import { card, fill, h, number, table } from "./dom.js";

const EVERY_MS = 2_000;

const OF_SHARES = {
  title: "Start offset", has_undo: false,
  words: "start, end, an offset, +N or -N, or @ and milliseconds since 1970. Every record from there on is given out again, whatever"
    + " became of it before. The group must have no members, and a reset cannot be undone: preview it first.",
};

// `seeking` is that of consumer groups.
export function sharePage(context, id, seeking) {
  const cards = h("div", { class: "cards" });
  const places = h("section");
  const members = h("section");
  context.main.append(cards, places, members, settings.can_change && seeking(context, id, OF_SHARES));
  context.every(EVERY_MS, async () => {
    const [why, { data: rows }] = await Promise.all([
      get("consumer-groups", id, "explain"), get("consumer-groups", id, "share-partitions")]);
    if (!context.isHere) return;
    context.works();
    const silent = rows.filter((row) => row.lag === null).length;
    fill(cards, card("state", why.state), card("members", number(why.members.length)),
      card("records to do", number(sum(rows, (row) => row.lag))), card("held by members", number(sum(rows, (row) => row.acquired))),
      card("given out more than once", number(sum(rows, again))),
      silent > 0 && card("partitions whose leader does not answer", number(silent), true));
    fill(places, table("Partitions", [
      ["Topic", (row) => h("a", { href: `#/topics/${encodeURIComponent(row.topic_name)}` }, row.topic_name), "name"],
      ["Partition", (row) => row.partition_id, "number"],
      ["Start", (row) => number(row.start_offset), "number"],
      ["End", (row) => number(row.log_end_offset), "number"],
      ["To do", (row) => number(row.lag), "number"],
      ["Held", (row) => number(row.acquired), "number"],
      ["Given out", (row) => delivered(row.deliveries)],
    ], rows, "nothing was read yet"),
    h("p", { class: "soft" }, "To do: records that are neither acknowledged nor archived. Given out: how many of them were delivered how often."));
    fill(members, table("Members", [
      ["Member", (row) => h("span", { class: "mono" }, row.member), "name"],
      ["Client", (row) => row.client_id],
      ["Host", (row) => row.host],
      ["Partitions", (row) => number(row.assigned.length), "number"],
    ], why.members, "no members"));
  });
}

const sum = (rows, of) => rows.reduce((total, row) => total + (of(row) ?? 0), 0);
const again = (row) => sum(row.deliveries.filter((item) => item.deliveries > 1), (item) => item.records);
const delivered = (deliveries) => deliveries.map((item) => `${number(item.records)} × ${item.deliveries}`).join(", ") || "–";
