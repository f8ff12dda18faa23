// Transactions, and who may do what.

import { get, post, put, remove, removeWith, settings } from "./api.js";
import { asked, badge, confirmed, fill, h, number, table } from "./dom.js";

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
  const users = h("section");
  const permissions = h("section");
  const quotas = h("section");
  const draw = async () => {
    const none = { data: [] };
    const [{ data: acls }, { data: limits }, { data: people }] = await Promise.all([
      settings.is_secure ? get("acls") : none, get("quotas"), get("users")]);
    if (!context.isHere) return;
    context.works();
    fill(users, table(`${people.length} users with passwords`, [
      ["User", (row) => row.user, "name"],
      ["Logs in by", (row) => row.mechanisms.join(", ")],
      ...(settings.can_change ? [["", (row) => h("div", { class: "bar" },
        h("button", { "aria-label": `Password of ${row.user}`, onclick: () => password(row.user, draw) }, "Password"),
        deletion(context, `Remove the user ${row.user}? Open connections stay until they log in again.`, () => remove("users", row.user), draw))]] : []),
    ], people, "no users with passwords"), settings.can_change && h("button", { onclick: () => password("", draw) }, "Add a user"));
    fill(permissions, table(`${acls.length} permissions`, [
      ["Who", (row) => row.principal, "name"],
      ["Rule", (row) => badge(row.permission.toLowerCase(), row.permission === "DENY" ? "bad" : "good")],
      ["What", (row) => words(row.operation)],
      ["Of", (row) => `${words(row.resource_type)} ${row.resource_name}${row.pattern_type === "PREFIXED" ? "*" : ""}`],
      ["From", (row) => row.host],
      ...(settings.can_change ? [["", (row) => deletion(context, `Remove this permission of ${row.principal}?`,
        () => removeWith(["acls"], Object.fromEntries(RULE.map((key) => [key, row[key]]))), draw)]] : []),
    ], acls, "no permissions"), settings.can_change && settings.is_secure && h("button", { onclick: () => permission(draw) }, "Add a permission"));
    fill(quotas, table(`${limits.length} quotas`, [
      ["Of", (row) => h("span", { class: "mono" }, entity(row)), "name"],
      ["Limits", (row) => h("span", { class: "mono" }, JSON.stringify(row.quotas ?? {}))],
      ...(settings.can_change ? [["", (row) => deletion(context, `Remove the quotas of ${entity(row)}?`,
        () => removeWith(["quotas"], parts(row)), draw)]] : []),
    ], limits, "no quotas"), settings.can_change && h("button", { onclick: () => quota(draw) }, "Set a quota"));
  };
  context.main.append(
    !settings.is_secure && h("p", { class: "notice" }, "This cluster has no permissions: everyone who reaches it may do everything."),
    users, permissions, quotas);
  context.every(EVERY_MS, draw);
}

const words = (text) => text.toLowerCase().replaceAll("_", " ");
const RULE = ["resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission"];
const RESOURCES = ["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"];
const OPERATIONS = ["READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS",
  "CLUSTER_ACTION", "IDEMPOTENT_WRITE", "TWO_PHASE_COMMIT", "ALL"];
const QUOTAS = ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate", "connection_creation_rate"];

const select = (label, values) => h("select", { "aria-label": label }, values.map((value) => h("option", { value }, words(value))));

function deletion(context, question, work, done) {
  return h("button", {
    class: "danger",
    onclick: async () => {
      if (!(await confirmed(question, "Remove"))) return;
      try { await work(); await done(); } catch (error) { context.fail(error); }
    },
  }, "Remove");
}

// The broker takes passwords by TLS only, and says so.
function password(user, done) {
  const name = h("input", { required: true, value: user, readonly: user !== "", autocomplete: "off", "aria-label": "User" });
  const secret = h("input", { required: true, type: "password", autocomplete: "new-password", "aria-label": "New password" });
  asked(user ? `Password of ${user}` : "Add a user", [h("label", {}, "User", name), h("label", {}, "New password", secret)], "Save", async () => {
    await put(["users", name.value], { password: secret.value });
    await done();
  });
}

function permission(done) {
  const fields = {
    principal: h("input", { required: true, value: "User:", "aria-label": "Who" }),
    permission: select("Rule", ["ALLOW", "DENY"]),
    operation: select("What", OPERATIONS),
    resource_type: select("Kind of resource", RESOURCES),
    resource_name: h("input", { required: true, value: "*", "aria-label": "Name" }),
    pattern_type: select("The name is", ["LITERAL", "PREFIXED"]),
    host: h("input", { required: true, value: "*", "aria-label": "From" }),
  };
  asked("Add a permission", Object.values(fields).map((field) => h("label", {}, field.getAttribute("aria-label"), field)), "Add", async () => {
    await post(["acls"], Object.fromEntries(Object.entries(fields).map(([key, field]) => [key, field.value])));
    await done();
  });
}

function quota(done) {
  const kind = select("Of a", ["user", "client_id", "ip"]);
  const name = h("input", { "aria-label": "Name; empty: the default" });
  const what = select("Limit", QUOTAS);
  const value = h("input", { type: "number", min: 0, step: "any", required: true, "aria-label": "Value" });
  asked("Set a quota", [kind, name, what, value].map((field) => h("label", {}, field.getAttribute("aria-label"), field)), "Set", async () => {
    await post(["quotas"], { [kind.value]: name.value, quotas: { [what.value]: Number(value.value) } });
    await done();
  });
}

const parts = (row) => Object.fromEntries(["user", "client_id", "ip"].filter((key) => row[key] !== undefined && row[key] !== null)
  .map((key) => [key, row[key]]));
const entity = (row) => ["user", "client_id", "ip"].filter((key) => row[key] !== undefined && row[key] !== null)
  .map((key) => `${key}=${row[key] || "default"}`).join(" ");
