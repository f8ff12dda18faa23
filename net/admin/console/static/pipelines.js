// Pipelines on Spark, as each `barnabas pipeline run` has told the cluster last.

import { get } from "./api.js";
import { badge, card, fill, h, number, size, table, time } from "./dom.js";

const EVERY_MS = 5_000;
const KINDS = { running: "good", finished: "good", restarting: "warn", failed: "bad", stopped: "" };

const state = (row) => row.silent ? badge("silent", "bad") : badge(row.state, KINDS[row.state]);
const rate = (value) => value === null ? "–" : number(value);

export function pipelinesPage(context) {
  const cards = h("div", { class: "cards" });
  const list = h("section");
  context.main.append(cards, list);
  context.every(EVERY_MS, async () => {
    const { data: rows } = await get("barnabas", "pipelines");
    if (!context.isHere) return;
    context.works();
    const running = rows.filter((row) => row.state === "running" && !row.silent);
    const bad = rows.filter((row) => row.state === "failed" || row.silent).length;
    fill(cards, card("running", number(running.length)),
      card("rows/s", number(running.reduce((sum, row) => sum + (row.rows_per_s ?? 0), 0))),
      card("failed or silent", number(bad), bad > 0));
    fill(list, table("Pipelines", [
      ["Pipeline", (row) => row.pipeline, "name"],
      ["State", state],
      ["Machine", (row) => row.machine],
      ["Records/s", (row) => rate(row.records_per_s), "number"],
      ["Rows/s", (row) => rate(row.rows_per_s), "number"],
      ["Lag", (row) => number(row.lag), "number"],
      ["Watermark", (row) => row.watermark ?? "–"],
      ["State rows", (row) => number(row.state_rows), "number"],
      ["State size", (row) => size(row.state_bytes), "number"],
      ["Bad records", (row) => number(row.bad_records), "number"],
      ["Restarts", (row) => number(row.restarts), "number"],
      ["Reported", (row) => time(row.at_ms)],
      ["Last error", (row) => row.last_error ?? "–"],
    ], rows, "none has reported in the last week"),
    h("p", { class: "soft" },
      "Silent: it should have reported since, and has not. Its process or its machine has died, or does not reach the brokers."));
  });
}
