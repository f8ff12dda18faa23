// Overview, quorum, events, doctor.

import { get, query } from "./api.js";
import { badge, card, fill, h, number, table, time } from "./dom.js";
import { topicHealth } from "./topics.js";

const EVERY_MS = 5_000;
const DOCTOR_EVERY_MS = 15_000; // it asks every broker and group
const MAX_EVENTS = 300; // on the screen
const SHOWN_TOPICS = 20;

export function overviewPage(context) {
  const cards = h("div", { class: "cards" });
  const sick = h("section");
  const health = h("section", { "aria-live": "polite" }, h("h2", {}, "Doctor"), h("p", { class: "soft" }, "looking…"));
  context.main.append(cards, health, sick);
  context.onOverview((overview) => {
    const { totals, brokers } = overview;
    const active = brokers.filter((broker) => broker.state === "active").length;
    fill(cards,
      card("brokers active", `${active} / ${brokers.length}`, active < brokers.length),
      card("topics", number(overview.topics_count)), card("partitions", number(totals.partitions)),
      card("under-replicated", number(totals.under_replicated), totals.under_replicated > 0),
      card("without leader", number(totals.without_leader), totals.without_leader > 0),
      card("on the move", number(totals.moving)));
    const found = overview.topics.filter((topic) => topic.under_replicated || topic.without_leader);
    fill(sick, table(`${number(found.length)} topics that are not in sync`, [
      ["Topic", (row) => h("a", { href: `#/topics/${encodeURIComponent(row.topic_name)}` }, row.topic_name), "name"],
      ["State", topicHealth],
    ], found.slice(0, SHOWN_TOPICS), "every replica is in sync"));
  });
  context.every(DOCTOR_EVERY_MS, () => diagnose(context, health));
}

async function diagnose(context, section) {
  const { findings } = await get("doctor");
  if (!context.isHere) return;
  context.works();
  fill(section, h("h2", {}, "Doctor"), findings.length ? findings.map(finding)
    : h("p", { class: "notice good" }, "nothing is wrong that the cluster can tell"));
}

const KINDS = { critical: "bad", problem: "bad", risk: "warn" };

function finding(item) {
  return h("div", { class: `finding ${item.weight}` },
    h("p", {}, badge(item.weight, KINDS[item.weight]), " ", h("strong", {}, item.what)),
    item.since_ms && h("p", { class: "soft" }, `Since ${new Date(item.since_ms).toISOString()}`), item.costs && h("p", {}, item.costs), item.cure && h("p", { class: "soft" }, `Cure: ${item.cure}`));
}

export function doctorPage(context) {
  const section = h("section", { "aria-live": "polite" }, h("p", { class: "soft" }, "looking…"));
  context.main.append(section);
  context.every(DOCTOR_EVERY_MS, () => diagnose(context, section));
}

export function quorumPage(context) {
  const cards = h("div", { class: "cards" });
  const list = h("section");
  context.main.append(cards, list);
  context.every(EVERY_MS, async () => {
    const quorum = await get("quorum");
    if (!context.isHere) return;
    context.works();
    const isLost = quorum.unconfirmed_ms >= 0;
    fill(cards,
      card("leader", quorum.leader_id < 0 ? "none" : quorum.leader_id, quorum.leader_id < 0 || isLost),
      card("term", number(quorum.term)), card("committed entries", number(quorum.committed_index)),
      card("voters", quorum.voters.join(", ")), card("observers", quorum.observers.join(", ") || "none"));
    fill(list,
      isLost && h("p", { class: "notice bad" },
        `no leader confirms this: it is ${Math.round(quorum.unconfirmed_ms / 1000)} s old; voters that do not answer: ${quorum.unreachable_voters.join(", ") || "none"}`),
      quorum.change && h("p", { class: "notice" }, `under way: ${quorum.change}`),
      table("As the leader sees them", [
        ["Node", (row) => row.node_id, "number"],
        ["Role", (row) => (row.is_voter ? "voter" : "observer")],
        ["State", (row) => (row.is_live ? badge("live", "good") : badge("does not answer", "bad"))],
        ["Address", (row) => h("span", { class: "mono" }, row.address)],
        ["Entries behind", (row) => (row.lag_entries < 0 ? "–" : number(row.lag_entries)), "number"],
      ], quorum.peers, "the leader cannot be asked"));
  });
}

export function eventsPage(context) {
  const list = h("ol", { class: "timeline", "aria-live": "polite" });
  const kind = h("input", { type: "search", placeholder: "filter", "aria-label": "Filter events", oninput: () => draw() });
  const section = h("section", {}, list);
  let cursor = "";
  let events = [];
  const words = (event) => Object.entries(event.fields).map(([key, value]) => `${key}=${value}`).join(" ");
  const draw = () => fill(list, events.filter((event) => `${event.event} ${event.kind} ${event.topic ?? ""} ${words(event)}`.includes(kind.value))
    .map((event) => h("li", {}, h("span", { class: "mono soft" }, time(event.at_ms)), " ", badge(event.kind, ""), " ",
      h("strong", {}, event.event), " ", event.topic ?? "", h("div", { class: "mono soft" }, words(event)))));
  context.main.append(h("div", { class: "bar" }, kind), section);
  context.every(1_000, async () => {
    const answer = cursor ? await query(["events"], { after: cursor }) : await get("events");
    if (!context.isHere) return;
    context.works();
    cursor = answer.cursor;
    if (!answer.data.length) return;
    events = [...answer.data.reverse(), ...events].slice(0, MAX_EVENTS);
    draw();
  });
}
