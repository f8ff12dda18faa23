// All topics, from the live overview: nothing is asked of the cluster.

import { post, settings } from "./api.js";
import { badge, fill, h, number, table } from "./dom.js";

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

  function draw() {
    const found = topics.filter((topic) =>
      topic.topic_name.includes(filter.value) && (internal.checked || !topic.topic_name.startsWith("__")));
    fill(list, table(
      `${number(found.length)} topics${found.length > SHOWN ? `; the first ${SHOWN} are shown` : ""}`,
      [
        ["Topic", (topic) => h("a", { href: `#/topics/${encodeURIComponent(topic.topic_name)}` }, topic.topic_name), "name"],
        ["Partitions", (topic) => number(topic.partitions), "number"],
        ["Replicas", (topic) => number(topic.replication_factor), "number"],
        ["State", topicHealth],
      ],
      found.slice(0, SHOWN), "no topics"));
  }

  context.main.append(
    h("div", { class: "bar" }, filter, h("label", { class: "inline" }, internal, "internal topics"),
      settings.can_change && creation(context)), list);
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
