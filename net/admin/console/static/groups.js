// Consumer groups: their lag, why they rebalanced, and their offsets.

import { get, post, query, settings } from "./api.js";
import { badge, card, confirmed, fill, h, lines, number, table, time } from "./dom.js";
import { sharePage } from "./shares.js";

const LIST_EVERY_MS = 5_000;
const GROUP_EVERY_MS = 2_000;
const AT_ONCE = 4; // questions about lags
const WITH_LAG = 100; // groups of the list whose lag is asked for
const HISTORY_EVERY_MS = 30_000;
const HOUR_MS = 3_600_000;
const LEAST_MS = 300_000; // of a chart: a coordinator that is new has a short line

const whole = (value) => number(value === null || value === undefined ? value : Math.round(value));
const STATES = { STABLE: "good", EMPTY: "", DEAD: "bad" };
const stateBadge = (state) => badge(state.toLowerCase().replaceAll("_", " "), STATES[state] ?? "warn");

export function groupsPage(context) {
  const list = h("section");
  const lags = new Map();
  context.main.append(list);
  context.every(LIST_EVERY_MS, async () => {
    const { data: groups } = await get("consumer-groups");
    const draw = () => fill(list, table(`${groups.length} groups`, [
      ["Group", (row) => h("a", { href: `#/groups/${encodeURIComponent(row.consumer_group_id)}` }, row.consumer_group_id), "name"],
      ["Kind", (row) => (row.protocol === "share" ? "share" : "consumer")],
      ["State", (row) => stateBadge(row.state)],
      ["Lag, records", (row) => number(lags.get(row.consumer_group_id)?.total_lag), "number"],
      ["Lag, seconds", (row) => whole(lags.get(row.consumer_group_id)?.max_lag_seconds), "number"],
    ], groups, "no consumer groups"));
    if (!context.isHere) return;
    context.works();
    draw();
    const waiting = groups.slice(0, WITH_LAG);
    await Promise.all(Array.from({ length: AT_ONCE }, async () => {
      while (waiting.length && context.isHere) {
        const { consumer_group_id: id } = waiting.shift();
        try { lags.set(id, await get("consumer-groups", id, "lag-summary")); } catch { lags.delete(id); } // no offsets yet
      }
    }));
    if (context.isHere) draw();
  });
}

// Share groups have a page of their own. Which one is shown is asked until a broker says it.
export function groupPage(context) {
  const [id] = context.rest;
  let isShown = false;
  context.every(GROUP_EVERY_MS, async () => {
    if (isShown) return;
    const { protocol } = await get("consumer-groups", id);
    if (!context.isHere) return;
    isShown = true;
    context.works();
    if (protocol === "share") sharePage(context, id, seeking);
    else consumerPage(context, id);
  });
}

function consumerPage(context, id) {
  const cards = h("div", { class: "cards" });
  const charts = h("section");
  const places = h("section");
  const members = h("section");
  const history = h("section");
  const lag = lagHistory(context, id, charts);
  context.main.append(cards, charts, places, members, settings.can_change && seeking(context, id, OF_CONSUMERS), history);
  context.every(GROUP_EVERY_MS, async () => {
    const [why, { data: lags }] = await Promise.all([
      get("consumer-groups", id, "explain"), get("consumer-groups", id, "lags")]);
    if (!context.isHere) return;
    context.works();
    const total = lags.reduce((sum, row) => sum + row.lag, 0);
    const worst = Math.max(0, ...lags.map((row) => row.lag_seconds ?? 0));
    lag.now(total, worst);
    fill(cards, card("state", why.state), card("members", number(why.members.length)), card("records behind", number(total)),
      card("seconds behind", whole(worst)), card("partitions without a reader", number(why.unowned.length), why.unowned.length > 0));
    fill(places, table("Partitions", [
      ["Topic", (row) => h("a", { href: `#/topics/${encodeURIComponent(row.topic_name)}` }, row.topic_name), "name"],
      ["Partition", (row) => row.partition_id, "number"],
      ["Committed", (row) => (row.has_committed ? number(row.current_offset) : "–"), "number"],
      ["End", (row) => number(row.log_end_offset), "number"],
      ["Lag", (row) => number(row.lag), "number"],
      ["Seconds", (row) => whole(row.lag_seconds), "number"],
      ["Member", (row) => h("span", { class: "mono" }, row.client_id || "–")],
    ], lags, "no committed offsets"));
    fill(members, why.unowned.map((item) => h("p", { class: "notice" }, `${item.topic}-${item.partition}: ${item.text}`)),
      table("Members", [
        ["Member", (row) => h("span", { class: "mono" }, row.instance || row.member), "name"],
        ["Client", (row) => row.client_id],
        ["Host", (row) => row.host],
        ["State", (row) => (row.away ? badge("away", "bad") : row.slow_ms ? badge("polls slowly", "warn") : badge("here", "good"))],
        ["Partitions", (row) => number(row.assigned.length), "number"],
      ], why.members, "no members"));
    fill(history, h("h2", {}, "Rebalances"), why.rebalances.length
      ? h("ol", { class: "timeline" }, [...why.rebalances].reverse().map(rebalance))
      : h("p", { class: "soft" }, "none since the coordinator started"));
  });
}

// Charts of the last hour: what the coordinator remembers, also of coordinators before it, and the newest value that this page asked for.
function lagHistory(context, id, charts) {
  let points = []; // [milliseconds since 1970, records, seconds], the oldest first
  let newest = null;
  let coordinator = "";
  context.every(HISTORY_EVERY_MS, async () => {
    const parts = ["consumer-groups", id, "lag-history"];
    let found = points.length ? await query(parts, { after_ms: points.at(-1)[0] }) : await get(...parts);
    // A new coordinator may know points that the one before did not have.
    if (coordinator !== "" && coordinator !== found.coordinator) found = await get(...parts);
    coordinator = found.coordinator;
    const all = new Map([...points, ...found.data.map((row) => [row.at_ms, row.lag, row.lag_seconds])].map((point) => [point[0], point]));
    points = [...all.values()].sort((one, other) => one[0] - other[0]);
    points = points.filter(([at]) => at > points.at(-1)[0] - HOUR_MS);
  });
  function line(column, title, show) {
    const all = newest[0] > (points.at(-1)?.[0] ?? 0) ? [...points, newest] : points;
    const end = all.at(-1)[0];
    const begin = Math.max(end - HOUR_MS, Math.min(all[0][0], end - LEAST_MS));
    return h("section", {}, h("h3", {}, title),
      lines([{ name: id, points: all.map((point) => [point[0], point[column]]) }], { title, show, begin, end, gap: 1.5 * HISTORY_EVERY_MS }));
  }
  return {
    now(records, seconds) {
      newest = [Date.now(), records, seconds];
      fill(charts, h("h2", {}, "Lag in the last hour"),
        h("p", { class: "soft" }, `The coordinator, broker ${coordinator}, looks every 30 seconds. The lines have gaps where no broker has looked.`),
        h("div", { class: "charts" }, line(1, "Lag in records", number), line(2, "Lag in seconds", whole)));
    },
  };
}

function rebalance(event) {
  const reasons = event.causes.map((item) =>
    [item.cause.toLowerCase().replaceAll("_", " "), item.client_id && ` (${item.client_id})`, item.detail && `: ${item.detail}`]
      .filter(Boolean).join(""));
  return h("li", {}, h("span", { class: "mono soft" }, time(event.at_ms)), " ",
    h("strong", {}, reasons.join("; ") || event.cause), h("div", { class: "soft" }, `${event.moves.length} partitions moved, epoch ${event.epoch}`));
}

const OF_CONSUMERS = {
  title: "Seek", has_undo: true,
  words: "start, end, an offset, +N or -N, or @ and milliseconds since 1970. It works while the group runs.",
};

// `of`: what is different for consumer groups and share groups.
function seeking(context, id, of) {
  const to = h("input", { required: true, value: "end", "aria-label": "Where to", list: "targets" });
  const result = h("div", { role: "status" });
  const show = (title, rows) => fill(result, table(title, [
    ["Topic", (row) => row.topic_name, "name"],
    ["Partition", (row) => row.partition_id, "number"],
    ["Before", (row) => number(row.before), "number"],
    ["After", (row) => number(row.after), "number"],
    ["Skipped", (row) => number(row.skipped), "number"],
    ["Read again", (row) => number(row.read_again), "number"],
  ], rows, "nothing moves"));
  const run = async (parts, body, title) => {
    try { show(title, (await post(["consumer-groups", id, ...parts], body)).data); context.works(); } catch (error) { context.fail(error); }
  };
  return h("section", {}, h("h2", {}, of.title),
    h("p", { class: "soft" }, of.words),
    h("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        await run(["seek"], { to: to.value, preview: true }, "Preview: nothing has moved yet");
      },
    }, to, h("datalist", { id: "targets" }, ["start", "end", "-100", "+100"].map((value) => h("option", { value }))),
    h("button", {}, "Preview"),
    h("button", {
      type: "button", class: "danger",
      onclick: async () => {
        if (await confirmed(`Move the offsets of ${id} to ${to.value}?`, "Seek")) await run(["seek"], { to: to.value }, "Moved");
      },
    }, "Seek"),
    of.has_undo && h("button", { type: "button", onclick: () => run(["seek", "undo"], {}, "Undone") }, "Undo")), result);
}
