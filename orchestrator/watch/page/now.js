// The first view: what is running, how far, how long still, whether anything is wrong (watch/fleet_view.py), the last lines.

import { get, poll } from "./api.js";
import { click } from "./actions.js";
import { CurveWall } from "./curves.js";
import { ago, clock, el, gib, meter, patch, percent, pill, short, span, sparkline, table } from "./dom.js";
import { lineList } from "./sections.js";

const CURVES_MS = 5000, READING_MS = 700;
const SWAP_MIB = 512;
const TONES = { error: "bad", warning: "warn", info: "info" };

export function now(root) {
  const place = (name, label, tone) => el(name, { "aria-label": label, class: tone });
  const about = place("section", "Run", "card run"), health = place("section", "Health"), nodes = place("section", "Nodes");
  const first = el("div"), lines = place("section", "Last lines", "chart tail"), second = el("div");
  const faults = place("section", "Newest faults");
  root.append(about, health, el("div", { class: "charts three" }, first, lines, second), nodes, faults);
  const wall = { loss: new CurveWall(first), per_s: new CurveWall(second) };
  let shown = "", drawn = "";
  const curves = poll(async (isCurrent) => {
    if (!shown) return;
    const { runs } = await get("/api/curves", { run: shown, name: "loss,per_s", group: "train,validation" });
    if (isCurrent()) for (const name of ["loss", "per_s"]) wall[name].give(runs, [name]);
    return runs[0].reading ? READING_MS : CURVES_MS;
  }, CURVES_MS, () => {}); // a run without a record: the snapshot shows what is known

  function tail(found) {
    const newest = found[found.length - 1], now = `${found.length} ${newest?.time} ${newest?.text}`;
    if (now === drawn) return;
    drawn = now;
    const before = lines.querySelector(".lines"), atEnd = !before || before.scrollHeight - before.scrollTop - before.clientHeight < 40;
    patch(lines, el("b", {}, "Last lines"), found.length ? lineList(found, "Last lines") : el("p", { class: "soft" }, "no line yet"));
    const list = lines.querySelector(".lines");
    if (list && atEnd) list.scrollTop = list.scrollHeight;
  }

  return {
    update(snapshot) {
      patch(about, runCard(snapshot));
      patch(health, healthLines(snapshot.health));
      tail(snapshot.lines);
      patch(nodes, el("h2", {}, "Nodes"), nodeTable(snapshot) || el("p", { class: "soft" }, "No nodes: the inventory is gone."));
      patch(faults, faultList(snapshot));
      const run = snapshot.run?.run_id || "";
      if (run !== shown) {
        shown = run;
        for (const one of Object.values(wall)) one.give([], []);
        curves.now();
      }
    },
    end: curves.end,
  };
}

function runCard(snapshot) {
  const run = snapshot.run;
  if (!run) {
    return [
      el("h1", {}, snapshot.looked ? "No run" : "Looking for runs…"),
      el("p", { class: "soft" }, "A run that is launched appears here by itself: ", el("code", {}, "orch launch")),
    ];
  }
  const active = run.active;
  const left = run.remaining_s;
  const until = left === null ? "" : `, until ${clock(new Date(Date.now() + 1000 * left))}`;
  const done = run.progress;
  return [
    el(
      "div", { class: "head" },
      el("h1", {}, pill(run.state), " ", el("a", { href: `#/run/${run.run_id}`, class: "mono" }, run.run_id)),
      el(
        "p", { class: "buttons" },
        active ? el("button", { type: "button", onclick: () => click("restart", run.run_id, run.user) }, "Restart…") : null,
        active ? el("button", { type: "button", class: "danger", onclick: () => click("stop", run.run_id, run.user) }, "Stop…") : null,
      ),
    ),
    el("p", { class: "soft line", title: run.command }, el("code", {}, run.command || "command unknown")),
    run.reason ? el("p", { class: "reason" }, run.reason) : null,
    el(
      "div", { class: "progress" },
      run.place && done === null ? null : meter(done, done === null ? "progress unknown" : `progress: ${percent(done)}`, active ? "" : "over"),
      el(
        "p", {},
        el("b", {}, done !== null ? percent(done) : run.place ? "" : "progress unknown"), run.place ? el("span", {}, run.place) : null,
        el("span", { class: "push" }, timeLeft(snapshot, left, until, active)),
      ),
    ),
    el(
      "dl", { class: "tiles" },
      run.loss === null ? null : tile("Loss", short(run.loss), sparkline(run.losses, "loss of the newest steps")),
      run.per_s === null ? null : tile("Speed", [short(run.per_s), el("small", {}, ` ${run.unit}/s`)],
        run.of_forecast === null ? null : el("small", { class: "soft" }, `${percent(run.of_forecast)} of the forecast`)),
      run.waiting === null ? null : tile("Waiting for data", percent(run.waiting)),
      run.exchanging === null ? null : tile("Exchanging", percent(run.exchanging)),
      tile("Started", run.started_at ? clock(run.started_at) : "–",
        el("small", { class: "soft" }, [
          run.started_at ? ago(run.started_at) : "", run.attempt > 1 ? `attempt ${run.attempt}` : "",
          run.as_of ? `on record until ${clock(run.as_of)}` : "",
        ].filter(Boolean).join(", "))),
    ),
  ];
}

function timeLeft({ run, nodes }, left, until, active) {
  if (left !== null) return [el("b", {}, `${span(left)} left`), until];
  if (!active) return "";
  if (run.output || run.work) return "";
  if (run.step === null) return "no step yet";
  if (nodes.some((node) => node.silent && node.node_rank !== null)) return "time left unknown while a node is silent";
  return run.step_age_s > 60 ? `no step for ${span(run.step_age_s)}` : "time left not known yet";
}

function tile(name, value, more = null) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value), more ? el("dd", { class: "more" }, more) : null);
}

// What is wrong, the worst first, or one line that all is well.
function healthLines({ lines, fine }) {
  if (!lines.length) return fine ? el("p", { class: "health good" }, fine) : null;
  return el("ul", { class: "health" }, lines.map(({ severity, about, text, command }) =>
    el("li", { class: TONES[severity] }, about ? [el("b", {}, about), " "] : null, text, command ? [" → ", el("code", {}, command)] : null)));
}

export function nodeTable(snapshot) {
  const has = (choose) => snapshot.nodes.some((node) => node.usage && choose(node.usage));
  const usage = (node, draw) => (node.usage ? draw(node.usage) : "–");
  const columns = [
    { title: "Node", class: "name", cell: (node) => [el("b", {}, node.name), node.node_rank === null ? null : el("small", { class: "soft", title: "node rank" }, ` #${node.node_rank}`)] },
    { title: "State", class: "state", cell: nodePill },
    { title: "CPU", class: "bar", cell: (node) => usage(node, (used) => share(used.cpu_percent / 100, `${Math.round(used.cpu_percent)} %`)) },
    { title: "Memory", class: "bar", cell: (node) => usage(node, (used) => share(used.ram_used_mib / used.ram_limit_mib, `${gib(used.ram_used_mib)} / ${gib(used.ram_limit_mib)}`, true)) },
    ...(has((used) => used.gpus.length) ? [
      { title: "GPU", class: "bar", cell: (node) => usage(node, gpuUse) },
      { title: "GPU memory", class: "bar", cell: (node) => usage(node, gpuMemory) },
      { title: "Temp, power", class: "number", cell: (node) => usage(node, heat) },
    ] : []),
    ...(has((used) => used.swap_used_mib >= SWAP_MIB) ? [{ title: "Swap", class: "number", cell: (node) => usage(node, (used) => gib(used.swap_used_mib)) }] : []),
    { title: "Disk MiB/s", class: "number", cell: (node) => usage(node, (used) => pair(used.disk_read_mib_s, used.disk_write_mib_s)) },
    { title: "Net MiB/s", class: "number", cell: (node) => usage(node, (used) => pair(used.network_in_mib_s, used.network_out_mib_s)) },
    ...(snapshot.nodes.some((node) => node.compute_s !== null) ? [
      { title: "Part of step", class: "number", cell: (node) => (node.compute_s === null ? "–" : `${node.compute_s < 1 ? node.compute_s.toFixed(3) : short(node.compute_s)} s`) },
    ] : []),
    ...(snapshot.nodes.some((node) => node.note) ? [
      { title: "Note", class: "wide", cell: (node) => (node.slow ? el("span", { class: "warn" }, node.note) : node.note) },
    ] : []),
  ];
  const rows = snapshot.nodes.map((node) => ({ ...node, tone: node.silent ? "old" : null }));
  return table(columns, rows, { caption: "Nodes and what they use", key: (node) => node.name });
}

export function nodePill(node) {
  if (node.silent) return el("span", { class: "pill s-bad" }, node.answered_s === null ? "no answer" : `silent ${span(node.answered_s)}`);
  return ["idle", "connecting"].includes(node.state) ? el("span", { class: "pill s-idle" }, node.state) : pill(node.state);
}

function share(value, text, isMemory = false) {
  return [meter(value, text, isMemory && value > 0.92 ? "warn" : ""), el("span", {}, text)];
}

function gpuUse(used) {
  const known = used.gpus.map((gpu) => gpu.utilization_percent).filter((one) => one !== null);
  if (!known.length) return "–";
  const mean = known.reduce((sum, one) => sum + one, 0) / known.length;
  return share(mean / 100, `${used.gpus.length > 1 ? `${used.gpus.length}× ` : ""}${Math.round(mean)} %`);
}

function gpuMemory(used) {
  const known = used.gpus.filter((gpu) => gpu.memory_used_mib !== null && gpu.memory_total_mib);
  if (!known.length) return "–";
  const [taken, whole] = ["memory_used_mib", "memory_total_mib"].map((key) => known.reduce((sum, gpu) => sum + gpu[key], 0));
  return share(taken / whole, `${gib(taken)} / ${gib(whole)}`, true);
}

const pair = (one, other) => `${one.toFixed(1)} / ${other.toFixed(1)}`;

// The hottest GPU, and the power of all.
function heat(used) {
  const [hot, power] = ["temperature_c", "power_w"].map((key) => used.gpus.map((gpu) => gpu[key]).filter((one) => one !== null));
  const words = [hot.length ? `${Math.max(...hot)} °C` : "", power.length ? `${Math.round(power.reduce((sum, one) => sum + one, 0))} W` : ""];
  return words.filter(Boolean).join(", ") || "–";
}

function faultList(snapshot) {
  if (!snapshot.faults.length) return [];
  const newest = [...snapshot.faults].reverse().slice(0, 12);
  return [
    el("h2", {}, "Newest faults and recoveries"),
    el("ol", { class: "events" }, newest.map((one) => el("li", {}, el("time", {}, clock(new Date(1000 * one.at), true)), ` ${one.text}`))),
  ];
}
