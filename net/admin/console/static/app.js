// The shell: routes of the address bar, the live overview, and the state in the corner. Pages are in the other files.

import { get, loadSettings, settings, streamUrl } from "./api.js";
import { badge, fill, h } from "./dom.js";
import { brokersPage } from "./brokers.js";
import { configurationPage } from "./configuration.js";
import { doctorPage, eventsPage, overviewPage, quorumPage } from "./cluster.js";
import { groupPage, groupsPage } from "./groups.js";
import { performancePage } from "./performance.js";
import { pipelinesPage } from "./pipelines.js";
import { topicPage } from "./topic.js";
import { topicsPage } from "./topics.js";
import { accessPage, transactionsPage } from "./access.js";

const PAGES = [
  ["", "Overview", overviewPage],
  ["topics", "Topics", topicsPage],
  ["groups", "Groups", groupsPage],
  ["pipelines", "Pipelines", pipelinesPage],
  ["brokers", "Brokers", brokersPage],
  ["configuration", "Configuration", configurationPage],
  ["performance", "Performance", performancePage],
  ["quorum", "Quorum", quorumPage],
  ["events", "Events", eventsPage],
  ["doctor", "Doctor", doctorPage],
  ["transactions", "Transactions", transactionsPage],
  ["access", "Access", accessPage],
];
const DETAILS = { topics: topicPage, groups: groupPage };

// What pages share: the newest overview, and who wants to hear of the next one.
export const live = { overview: null, listeners: new Set() };

let leave = () => {};

function parts() {
  return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
}

function show() {
  leave();
  for (const dialog of document.querySelectorAll("dialog")) dialog.dispatchEvent(new Event("cancel"));
  const [name = "", ...rest] = parts();
  const found = PAGES.find(([path]) => path === name) || PAGES[0];
  const page = rest.length && DETAILS[name] ? DETAILS[name] : found[2];
  fill(document.getElementById("nav"), PAGES.map(([path, title]) =>
    h("a", { href: `#/${path}`, "aria-current": path === found[0] ? "page" : undefined }, title)));
  const main = document.getElementById("main");
  const stops = [];
  const context = {
    main,
    live,
    rest,
    isHere: true,
    // Called now, and whenever the overview changes, while the page is open.
    onOverview(listener) {
      live.listeners.add(listener);
      stops.push(() => live.listeners.delete(listener));
      if (live.overview) listener(live.overview);
    },
    // Called now, and again so long after each end, while the page is open and visible. Returns what makes the next call at once.
    every(ms, work) {
      let timer = 0;
      let isBusy = false;
      let isDue = false;
      const turn = async () => {
        isBusy = true;
        clearTimeout(timer);
        do {
          isDue = false;
          if (!document.hidden) {
            try { await work(); } catch (error) { context.fail(error); }
          }
        } while (isDue && context.isHere);
        isBusy = false;
        if (context.isHere) timer = setTimeout(turn, ms);
      };
      turn();
      stops.push(() => clearTimeout(timer));
      return () => { if (isBusy) isDue = true; else turn(); };
    },
    onLeave(stop) { stops.push(stop); },
    fail(error) {
      if (!context.isHere) return;
      const old = main.querySelector("#failure");
      const notice = h("p", { class: "notice bad", id: "failure", role: "alert" }, error.message);
      if (old) old.replaceWith(notice); else main.prepend(notice);
    },
    works() { main.querySelector("#failure")?.remove(); },
  };
  leave = () => { context.isHere = false; stops.forEach((stop) => stop()); };
  document.title = `${rest[0] || found[1]} · Barnabas`;
  fill(main, h("h1", {}, rest[0] || found[1]));
  page(context);
}

function state(text, kind) {
  fill(document.getElementById("state"), badge(text, kind));
}

function tell(overview) {
  const { totals, brokers } = overview;
  const away = brokers.filter((broker) => broker.state === "fenced").length;
  if (totals.without_leader) state(`${totals.without_leader} partitions without a leader`, "bad");
  else if (away) state(`${away} of ${brokers.length} brokers away`, "bad");
  else if (totals.under_replicated) state(`${totals.under_replicated} partitions under-replicated`, "warn");
  else state("healthy", "good");
}

function follow() {
  const source = new EventSource(streamUrl());

  source.onmessage = (event) => {

    live.overview = JSON.parse(event.data);
    tell(live.overview);
    for (const listener of [...live.listeners]) listener(live.overview);
  };
  source.onopen = () => { if (live.overview) tell(live.overview); };
  source.onerror = () => {
    state(`broker ${settings.node_id} does not answer`, "bad");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 3_000);
  };
}

async function start() {
  try {
    await loadSettings();
    await get("overview"); // A browser asks for user and password here, if the cluster wants them.
  } catch (error) {
    state("not connected", "bad");
    fill(document.getElementById("main"), h("h1", {}, "Not connected"),
      h("p", { class: "notice bad", role: "alert" }, error.message),
      h("button", { onclick: () => location.reload() }, "Try again"));
    return;
  }
  follow();
  window.addEventListener("hashchange", () => { show(); document.getElementById("main").focus(); });
  show();
}

start();
