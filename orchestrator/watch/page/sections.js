// Sections of a recorded run, for the page and for the file of `orch report`.

import { CurveWall, ResourceWall, figuresOf } from "./curves.js";
import { clock, el, fact, fold, gib, numbers, patch, percent, pill, short, span, table } from "./dom.js";

const FIRST_CHARTS = 4;
const WIDE = matchMedia("(min-width: 46rem)").matches; // on a phone, all but the curves is folded

// Draws a run into an element, again and again as it grows. data: of run_view.py.
export class RunSections {
  constructor(root, { curves = true } = {}) {
    const place = (name, label) => el(name, { "aria-label": label });
    this.head = el("section", { class: "card run", "aria-label": "Run" });
    this.why = place("section", "Cause");
    this.charts = el("section", { class: "charts", "aria-label": "Curves" });
    this.others = el("div", { class: "charts" });
    this.used = el("div", { class: "charts" });
    this.about = el("section");
    this.more = fold("figures", "More figures", false, this.others);
    this.resources = fold("resources", "Resources of each node", WIDE, this.used);
    root.append(this.head, this.why, ...(curves ? [this.charts, this.more] : []), this.resources, this.about);
    this.walls = curves ? [new CurveWall(this.charts), new CurveWall(this.others)] : [];
    this.resourceWall = new ResourceWall(this.used);
  }

  // The state may be known better than the record has it; buttons: elements for the head.
  draw(data, { state = data.state, buttons = null } = {}) {
    patch(this.head, head(data, state, buttons));
    const names = figuresOf([data]), [first, others] = this.walls;
    first?.give([data], names.slice(0, FIRST_CHARTS));
    others?.give([data], names.slice(FIRST_CHARTS));
    this.more.hidden = names.length <= FIRST_CHARTS;
    this.more.firstChild.textContent = `More figures (${names.length - FIRST_CHARTS})`;
    this.resourceWall.give(data);
    this.resources.hidden = !this.used.childElementCount;
    patch(this.about, timeline(data), machines(data), forecast(data), options(data), samples(data), lastLines(data));
  }

  // The end of the last lines, as a terminal shows them.
  scroll() {
    const lines = this.about.querySelector(".lines");
    if (lines) lines.scrollTop = lines.scrollHeight;
  }

  explain(data) {
    patch(this.why, cause(data));
  }
}

function head(data, state, buttons) {
  return [
    el("div", { class: "head" }, el("h1", {}, state ? pill(state) : null, " ", el("span", { class: "mono" }, data.run_id)), buttons ? el("p", { class: "buttons" }, buttons) : null),
    data.command ? el("p", { class: "soft" }, el("code", {}, data.command)) : null,
    data.reason ? el("p", { class: "reason" }, data.reason) : null,
    data.reading ? el("p", { class: "soft" }, "reading the record…") : null,
    el("dl", { class: "tiles" }, (data.key_figures || []).map(([name, value]) => fact(name, value))),
    (data.notes || []).map((one) => el("p", { class: "soft" }, one)),
  ];
}

function cause(data) {
  if (!data.failure) return null;
  const found = data.failure.cause, lines = found?.evidence || data.failure.lines || [];
  return el(
    "div", { class: "card box bad" },
    el("h2", {}, data.headline),
    found ? el("p", {}, found.explanation) : null,
    found?.frame ? el("p", {}, "where: ", el("code", {}, found.frame)) : null,
    lines.length ? el("pre", { tabindex: 0 }, lines.join("\n")) : null,
    found ? el("ul", {}, found.fix.map((step) => el("li", {}, step))) : null,
    data.consequences.length ? el("p", { class: "soft" }, `after that: ${data.consequences.join("; ")}`) : null,
    data.owner ? el("p", { class: "soft" }, data.owner) : null,
    found ? el("p", { class: "soft" }, "more: ", el("code", {}, `orch explain ${found.finding || found.id}`)) : null,
  );
}

function timeline(data) {
  if (!data.moments?.length) return null;
  const total = Math.max(1e-9, data.seconds), faults = data.moments.filter((one) => one.kind === "fault").length;
  const names = data.phases.map((one) => `${one.name} ${span(one.end_s - one.begin_s)}`);
  const bars = data.phases.map((one) => el(
    "rect", { class: `phase p-${one.name}`, x: (700 * one.begin_s / total).toFixed(1), y: 0, height: 14, width: Math.max(1, 700 * (one.end_s - one.begin_s) / total).toFixed(1) },
  ));
  const left = data.moments_left_out ? `; ${numbers(data.moments_left_out)} more are on record` : "";
  return [
    el("h2", {}, "Timeline"),
    bars.length ? el("svg", { class: "phases", viewBox: "0 0 700 14", preserveAspectRatio: "none", role: "img", "aria-label": `phases: ${names.join(", ")}` }, bars) : null,
    el("p", { class: "legend" }, data.phases.map((one, n) => el("span", {}, el("i", { class: `key p-${one.name}` }), names[n]))),
    fold("timeline", `${data.moments.length} moments, ${faults ? `${faults} ${faults === 1 ? "fault" : "faults"}` : "no fault"}${left}`, false, el("ol", { class: "events", tabindex: 0 }, [...data.moments].reverse().map((one) => el(
      "li", { class: one.kind === "fault" ? "bad" : "" }, el("time", {}, span(one.at_s)), ` ${one.node ? `${one.node}: ` : ""}${one.text}`,
    )))),
  ];
}

function machines(data) {
  const columns = [
    { title: "Node", class: "name", cell: (one) => el("b", {}, one.node) },
    { title: "Ranks", cell: (one) => (one.ranks[0] === one.ranks[1] ? one.ranks[0] : `${one.ranks[0]}–${one.ranks[1]}`) },
    { title: "Device", class: "wide", cell: (one) => [one.device, ...one.gpus, one.precision, one.threads ? `${one.threads} threads` : "", one.torch ? `torch ${one.torch}` : ""].filter(Boolean).join(", ") },
    { title: "Address", cell: (one) => [one.address, one.interface].filter(Boolean).join(", ") },
    { title: "CPUs", class: "number", cell: (one) => short(one.cpus) },
    { title: "Memory", class: "number", cell: (one) => gib(one.memory_mib) },
    { title: "Link", class: "number", cell: (one) => (one.link_mbit_s === null ? "–" : `${short(one.link_mbit_s)} Mbit/s`) },
    { title: "A sample takes", class: "number", cell: (one) => (one.sample_s === null ? "–" : `${short(one.sample_s)} s`) },
    { title: "Share", class: "number", cell: (one) => percent(one.share) },
    { title: "Note", class: "wide", cell: (one) => (one.left_out ? `left out: ${one.left_out}` : "") },
  ];
  const found = table(columns, data.machines || [], { caption: "Machines of the run", key: (one) => one.node });
  return found && fold("machines", `Machines (${data.machines.length})`, WIDE, found);
}

function forecast(data) {
  if (!data.forecast) return null;
  const columns = [
    { title: "Sync method", class: "name", cell: (one) => el("b", {}, one.sync) },
    { title: "", class: "state", cell: (one) => (one.chosen ? el("span", { class: "pill s-good" }, "chosen") : "") },
    { title: "Nodes", class: "wide", cell: (one) => one.nodes.join(", ") },
    { title: "Step", class: "number", cell: (one) => `${short(one.step_s)} s` },
    { title: `${data.forecast.unit}/s`, class: "number", cell: (one) => short(one.per_s) },
    { title: "Speedup", class: "number", cell: (one) => one.speedup.toFixed(2) },
    { title: "MB sent in a step", class: "number", cell: (one) => short(one.sent_mb) },
  ];
  return fold(
    "forecast", "Forecast of each sync method", false,
    table(columns, data.forecast.rows, { caption: "Forecast", key: (one) => `${one.sync} ${one.nodes}` }), data.forecast.warnings.map((one) => el("p", { class: "soft" }, one)),
  );
}

function options(data) {
  const given = [...(data.options || [])].sort((a, b) => (a.origin === "default") - (b.origin === "default"));
  const rows = [...given, ...(data.versions || []).map(([name, value]) => ({ name, value, origin: "version" }))];
  const columns = [
    { title: "Option", class: "name", cell: (one) => el("code", {}, one.name) },
    { title: "Value", class: "wide", cell: (one) => el("code", {}, one.value) },
    { title: "From", cell: (one) => one.origin },
  ];
  const found = table(columns, rows, { caption: "Options and versions of the run", key: (one) => `${one.origin} ${one.name} ${one.value}` });
  return found && fold("options", `Options and versions (${rows.length})`, false, found);
}

function samples(data) {
  if (!data.samples?.length) return null;
  return fold("samples", "Text that the model wrote", false, data.samples.map((one) => el("pre", { tabindex: 0 }, `${one.step === null ? "" : `step ${numbers(one.step)}\n`}${one.text}`)));
}

function lastLines(data) {
  if (!data.last_lines?.length) return null;
  const count = data.lines === null ? "all: " : `${numbers(data.lines)} lines are on record: `; // the page counts none
  return [el("h2", {}, "Last lines"), lineList(data.last_lines, "Last lines"), el("p", { class: "soft" }, count, el("code", {}, `orch logs ${data.run_id}`))];
}

// Log lines [{time, node, rank, text}], the newest last.
export function lineList(lines, label) {
  return el("ol", { class: "lines short", tabindex: 0, "aria-label": label }, lines.map((line) => el(
    "li", {}, el("time", { title: line.time }, clock(line.time, true).split(", ").pop()),
    el("span", { class: "who" }, line.node, line.rank === null || line.rank === undefined ? "" : ` r${line.rank}`), el("span", { class: "text" }, line.text || " "),
  )));
}

// Several runs side by side: rows [name, [value of each run]].
export function comparison(runs, rows) {
  const columns = [
    { title: "Figure", class: "name", cell: ([name]) => el("b", {}, name) },
    ...runs.map((run, n) => ({ title: run.run_id, class: "wide", cell: ([, values]) => values[n] || "–" })),
  ];
  return table(columns, rows, { caption: "Comparison of the runs", key: ([name]) => name });
}
