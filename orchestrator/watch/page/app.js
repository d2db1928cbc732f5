// The frame of the page: views by address, the state of the connection, theme, keys.

import { follow, get } from "./api.js";
import { say, showActions } from "./actions.js";
import { refresh } from "./chart.js";
import { clock, el, patch, percent, short, span } from "./dom.js";
import { logs } from "./logs.js";
import { now } from "./now.js";
import { run, runs } from "./runs.js";
import { checkpoints, findings, nodes } from "./stores.js";

const VIEWS = [
  ["", "Now", now], ["runs", "Runs", runs], ["nodes", "Nodes", nodes], ["logs", "Logs", logs],
  ["checkpoints", "Checkpoints", checkpoints], ["findings", "Findings", findings],
];
const THEMES = ["auto", "light", "dark"];
const main = document.getElementById("main"), banner = document.getElementById("banner"), link = document.getElementById("link");
let view = null, snapshot = null, alone = false;

if (location.search) history.replaceState(null, "", location.pathname + location.hash); // the token, if it is still there

function show() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  view?.end?.();
  main.replaceChildren();
  refresh();
  const parameters = new URLSearchParams(query);
  const found = VIEWS.find(([one]) => one === name) || VIEWS[0];
  try {
    view = name === "run" ? run(main, parameters, decodeURIComponent(rest.join("/"))) : found[2](main, parameters);
  } catch (error) {
    view = null;
    patch(main, el("p", { class: "warn" }, `This address shows nothing: ${error.message}`));
  }
  const active = name === "run" ? "runs" : found[0];
  patch(document.getElementById("nav"), VIEWS.map(([one, title]) => el("a", { href: `#/${one}`, "aria-current": one === active ? "page" : null }, title)));
  document.querySelector("#nav [aria-current]")?.scrollIntoView({ inline: "nearest", block: "nearest" });
  if (snapshot) view?.update?.(snapshot);
}

function heard(data) {
  snapshot = data;
  alone = false;
  document.body.classList.remove("stale");
  patch(link, el("span", { class: "good" }, "live"));
  patch(banner, data.problem ? el("p", { class: "warn" }, data.problem.message, data.problem.hint ? [" → ", el("code", {}, data.problem.hint)] : null) : null);
  view?.update?.(data);
  showActions(data.actions, data.at);
  const one = data.run;
  document.title = one ? `${one.progress === null ? one.state : percent(one.progress)}${one.loss === null ? "" : ` · ${short(one.loss)}`} · ${one.run_id} – orch` : "orch";
}

function lost(since, seconds) {
  if (!alone) patch(link, el("span", { class: "bad" }, "not connected"));
  alone = true;
  document.body.classList.add("stale");
  const when = since ? ` since ${clock(since, true)} (${span(seconds)})` : "";
  patch(
    banner,
    el("p", { class: "bad" }, el("b", {}, `The controller cannot be reached${when}.`), " What is shown is from then. Trying again; if ",
      el("code", {}, "orch dashboard"), " was started again, open the address that it has printed."),
  );
}

function theme(next) {
  const button = document.getElementById("theme");
  const chosen = next || stored();
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem("theme", chosen);
  } catch { /* the choice lasts until the page is closed */ }
  button.textContent = { auto: "◐", light: "☀", dark: "☾" }[chosen];
  button.setAttribute("aria-label", `Theme: ${chosen}`);
  button.title = `Theme: ${chosen} (t)`;
  refresh();
  button.onclick = () => theme(THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
}

function stored() {
  try {
    const kept = localStorage.getItem("theme");
    return THEMES.includes(kept) ? kept : "auto";
  } catch {
    return "auto";
  }
}

function help() {
  const keys = [
    ...VIEWS.map(([, title], n) => [String(n + 1), title]), ["/", "find: words, or a filter"], ["t", "theme: auto, light, dark"],
    ["← →", "in a chart: read the values"], ["+ -", "in a chart: zoom, the whole range; or drag"], ["Esc", "close"], ["?", "this help"],
  ];
  say("Keyboard shortcuts", el("dl", { class: "keys" }, keys.map(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)])));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const number = Number(event.key);
  if (number >= 1 && number <= VIEWS.length) location.hash = `#/${VIEWS[number - 1][0]}`;
  else if (event.key === "t") document.getElementById("theme").click();
  else if (event.key === "?") help();
  else if (event.key === "/") {
    const field = main.querySelector("[data-find]");
    if (!field) return;
    event.preventDefault();
    field.focus();
  }
});
document.getElementById("skip").onclick = (event) => {
  event.preventDefault();
  main.focus();
};
document.getElementById("help").onclick = help;
window.addEventListener("hashchange", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
theme();
show();
follow(heard, lost);
get("/api/about").then((about) => patch(document.getElementById("project"), about.project === "orch" ? "" : about.project)).catch(() => {});
