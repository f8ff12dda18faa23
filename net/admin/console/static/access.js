// Transactions, and who may do what.

import { get, remove, settings } from "./api.js";
import { badge, confirmed, fill, h, number, table } from "./dom.js";

const EVERY_MS = 5_000;
const seconds = (ms) => (ms === null ? "–" : `${number(Math.round(ms / 1000))} s`);

export function transactionsPage(context) {
  const list = h("section");
  context.main.append(list);
  context.every(EVERY_MS, async () => {
    const { data: rows } = await get("transactions");
    if (!context.isHere) return;
    context.works();
    fill(list, table(`${rows.length} transactional ids`, [
      ["Id", (row) => row.transactional_id, "name"],
      ["State", (row) => badge(String(row.state ?? ""), row.duration_ms > row.timeout_ms ? "bad" : "")],
      ["Open for", (row) => seconds(row.duration_ms), "number"],
      ["Timeout", (row) => seconds(row.timeout_ms), "number"],
      ["Partitions", (row) => number(row.partition_count), "number"],
      ["Producer", (row) => `${row.producer_id} / ${row.producer_epoch}`, "number"],
      ["", (row) => settings.can_change && row.duration_ms !== null && abort(context, row.transactional_id)],
    ], rows, "no transactional ids"));
  });
}

function abort(context, id) {
  return h("button", {
    class: "danger",
    onclick: async () => {
      if (!(await confirmed(`Abort the open transaction of ${id}? Its records will never be read.`, "Abort"))) return;
      try { await remove("transactions", id); } catch (error) { context.fail(error); }
    },
  }, "Abort");
}

export function accessPage(context) {
  const permissions = h("section");
  const quotas = h("section");
  context.main.append(
    !settings.is_secure && h("p", { class: "notice" }, "This cluster has no permissions: everyone who reaches it may do everything."),
    permissions, quotas);
  context.every(EVERY_MS, async () => {
    const none = { data: [] };
    const [{ data: acls }, { data: limits }] = await Promise.all([settings.is_secure ? get("acls") : none, get("quotas")]);
    if (!context.isHere) return;
    context.works();
    fill(permissions, table(`${acls.length} permissions`, [
      ["Who", (row) => row.principal, "name"],
      ["", (row) => badge(row.permission.toLowerCase(), row.permission === "DENY" ? "bad" : "good")],
      ["What", (row) => row.operation.toLowerCase().replaceAll("_", " ")],
      ["Of", (row) => `${row.resource_type.toLowerCase()} ${row.resource_name}${row.pattern_type === "PREFIXED" ? "*" : ""}`],
      ["From", (row) => row.host],
    ], acls, "no permissions"));
    fill(quotas, table(`${limits.length} quotas`, [
      ["Of", (row) => h("span", { class: "mono" }, entity(row)), "name"],
      ["Limits", (row) => h("span", { class: "mono" }, JSON.stringify(row.quotas ?? {}))],
    ], limits, "no quotas"));
  });
}

const entity = (row) => ["user", "client_id", "ip"].filter((key) => row[key] !== undefined && row[key] !== null)
  .map((key) => `${key}=${row[key] || "default"}`).join(" ");
