// All topics, from the live overview: nothing is asked of the cluster.

import { get, post, settings } from "./api.js";
import { badge, fill, h, number, table } from "./dom.js";

const LAGS_EVERY_MS = 15_000;
const LAGS_AT_ONCE = 4; // questions
const MAX_GROUPS = 100; // whose lag is asked for
const SHOWN = 200; // rows; a filter finds the others

export function topicHealth(topic) {
  if (topic.without_leader) return badge(`${topic.without_leader} without leader`, "bad");
  if (topic.under_replicated) return badge(`${topic.under_replicated} under-replicated`, "warn");
  if (topic.moving) return badge(`${topic.moving} moving`, "");
  return badge("in sync", "good");
}

export function topicsPage(context) {
  const list = h("section");
  const filter = h("input", { type: "search", "aria-label": "Filter by name", placeholder: "filter by name", oninput: () => draw() });
  const internal = h("input", { type: "checkbox", onchange: () => draw() });
  let topics = [];
  let lags = new Map(); // by topic: by group: records
  const total = (name) => lags.has(name) ? [...lags.get(name).values()].reduce((sum, lag) => sum + lag, 0) : null;
  const readers = (name) => [...(lags.get(name) ?? new Map()).keys()].map((group, index) =>
    [index ? ", " : "", h("a", { href: `#/groups/${encodeURIComponent(group)}` }, group)]);

  function draw() {
    const found = topics.filter((topic) =>
      topic.topic_name.includes(filter.value) && (internal.checked || !topic.topic_name.startsWith("__")));
    fill(list, table(
      `${number(found.length)} topics${found.length > SHOWN ? `; the first ${SHOWN} are shown` : ""}`,
      [
        ["Topic", (topic) => h("a", { href: `#/topics/${encodeURIComponent(topic.topic_name)}` }, topic.topic_name), "name"],
        ["Partitions", (topic) => number(topic.partitions), "number"],
        ["Replicas", (topic) => number(topic.replication_factor), "number"],
        ["Groups", (topic) => readers(topic.topic_name)],
        ["Lag", (topic) => number(total(topic.topic_name)), "number"],
        ["State", topicHealth],
      ],
      found.slice(0, SHOWN), "no topics"));
  }

  context.main.append(
    h("div", { class: "bar" }, filter, h("label", { class: "inline" }, internal, "internal topics"),
      settings.can_change && creation(context)), list);
  context.every(LAGS_EVERY_MS, async () => {
    const found = await lagsByTopic(context);
    if (!context.isHere) return;
    lags = found;
    draw();
  });
  context.onOverview((overview) => {
    if (JSON.stringify(overview.topics) === JSON.stringify(topics)) return;
    topics = overview.topics;
    draw();
  });
}

function creation(context) {
  const name = h("input", { required: true, maxlength: 249, "aria-label": "Name of the new topic", placeholder: "new topic" });
  const partitions = h("input", { type: "number", min: 1, max: 10000, value: 1, "aria-label": "Partitions" });
  return h("form", {
    class: "bar",
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        await post(["topics"], { topic_name: name.value, partitions_count: Number(partitions.value) });
        location.hash = `#/topics/${encodeURIComponent(name.value)}`;
      } catch (error) { context.fail(error); }
    },
  }, name, partitions, h("button", {}, "Create"));
}

async function lagsByTopic(context) {
  const waiting = (await get("consumer-groups")).data.slice(0, MAX_GROUPS).map((group) => group.consumer_group_id);
  const found = new Map();
  await Promise.all(Array.from({ length: LAGS_AT_ONCE }, async () => {
    while (waiting.length && context.isHere) {
      const group = waiting.shift();
      let rows = [];
      try { rows = (await get("consumer-groups", group, "lags")).data; } catch { continue; } // it was deleted, or is no consumer group
      for (const { topic_name: topic, lag } of rows) {
        if (!found.has(topic)) found.set(topic, new Map());
        found.get(topic).set(group, (found.get(topic).get(group) ?? 0) + lag);
      }
    }
  }));
  return found;
}
