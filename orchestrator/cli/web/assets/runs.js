// All runs with the curves of those that are chosen; and one run in detail.

import { get } from "./api.js";
import { click } from "./actions.js";
import { COLOURS, CurveWall, ResourceWall, inOrder, titleOf } from "./charts.js";
import { ago, clock, el, fact, gib, numbers, patch, percent, pill, short, span, table } from "./dom.js";

const LIST_MS = 5000, CURVES_MS = 5000, READING_MS = 700;
const MOST = 10;
const FIGURES = 4;

export function runs(root, parameters) {
  const chosen = new Set((parameters.get("runs") || "").split(",").filter(Boolean).slice(0, MOST));
  const filter = el("input", { type: "search", placeholder: "Filter by id, command, user, state, node", "aria-label": "Filter runs", "data-find": true });
  const list = el("div");
  const about = el("p", { class: "soft", role: "status" });
  const chips = el("p", { class: "chips", role: "group", "aria-label": "Figures to show" });
  const walls = el("div", { class: "charts" });
  root.append(
    el("h1", {}, "Runs"), el("div", { class: "bar-of-tools" }, filter), list, about, el("h2", {}, "Curves"), chips, walls,
  );
  const wall = new CurveWall(walls);
  let data = null, shown = null, first = !chosen.size, asking = false, due = 0, listing = false, listed = 0;

  async function load() {
    if (listing || performance.now() < listed) return;
    listing = true;
    try {
      data = await get("/api/runs");
      if (first && data.runs.length) {
        first = false;
        chosen.add(data.runs[0].run_id);
        due = 0;
      }
      draw();
    } catch (error) {
      about.textContent = error.message;
    } finally {
      listing = false;
      listed = performance.now() + LIST_MS;
    }
  }

  function choose(run, on) {
    if (on && chosen.size >= MOST) return draw();
    if (on) chosen.add(run);
    else chosen.delete(run);
    history.replaceState(null, "", `#/runs?runs=${[...chosen].map(encodeURIComponent).join(",")}`);
    due = 0;
    draw();
    curves();
  }

  function draw() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => [run.run_id, run.command, run.user, run.state, ...run.nodes].join(" ").toLowerCase();
    const passing = data.runs.filter((run) => words.every((word) => text(run).includes(word)));
    const colour = (run) => [...chosen].indexOf(run.run_id);
    const columns = [
      {
        title: "Curves", class: "tick", cell: (run) => {
          const box = el("input", { type: "checkbox", "aria-label": `Show the curves of ${run.run_id}`, onchange: (event) => choose(run.run_id, event.target.checked) });
          box.checked = chosen.has(run.run_id);
          return el("label", { class: box.checked ? `key-of b${colour(run) % COLOURS}` : "key-of" }, box);
        },
      },
      { title: "Run", class: "name", cell: (run) => el("a", { href: `#/run/${encodeURIComponent(run.run_id)}`, class: "mono" }, run.run_id) },
      { title: "State", class: "state", cell: (run) => pill(run.state) },
      { title: "Step", class: "number", cell: (run) => (run.step === undefined || run.step === null ? "–" : `${numbers(run.step)}${run.final_step ? ` / ${numbers(run.final_step)}` : ""}`) },
      { title: "Loss", class: "number", cell: (run) => short(run.loss) },
      { title: "Nodes", class: "number", cell: (run) => el("span", { title: run.nodes.join(", ") }, run.nodes.length || "–") },
      { title: "Started", cell: (run) => (run.started_at ? el("span", { title: ago(run.started_at) }, clock(run.started_at)) : "–") },
      { title: "By", cell: (run) => run.user || "–" },
      { title: "Command", class: "wide", cell: (run) => [el("code", {}, run.command), run.reason ? el("small", { class: "soft" }, ` ${run.reason}`) : null] },
    ];
    patch(list, table(columns, passing, { caption: "Runs", key: (run) => run.run_id })
      || el("p", { class: "soft" }, data.runs.length ? "No run matches." : ["No runs yet: ", el("code", {}, "orch launch")]));
    const silent = Object.keys(data.unreachable);
    about.textContent = [
      data.asked ? "" : "asking the nodes…", data.more ? `${data.more} older runs are not shown` : "",
      silent.length ? `${silent.join(", ")} did not answer: runs there may be missing` : "", data.problem,
      chosen.size >= MOST ? `at most ${MOST} runs side by side` : "",
    ].filter(Boolean).join(" · ");
  }

  async function curves() {
    if (asking || performance.now() < due) return;
    const wanted = [...chosen];
    if (!wanted.length) {
      wall.give([], []);
      patch(chips, el("span", { class: "soft" }, "Choose runs in the table."));
      return;
    }
    asking = true;
    try {
      const all = await get("/api/curves", { run: wanted, group: "train,validation", name: shown ? shown.join(",") : "" });
      const names = inOrder(new Set(all.runs.flatMap((run) => run.figures)));
      if (!shown && names.length) shown = names.slice(0, FIGURES);
      patch(chips, names.map((name) => el("button", {
        type: "button", "data-key": name, "aria-pressed": String(Boolean(shown?.includes(name))), class: "chip",
        onclick: () => {
          shown = shown.includes(name) ? shown.filter((one) => one !== name) : inOrder([...shown, name]);
          due = 0;
          curves();
        },
      }, titleOf(name))), names.length ? null : el("span", { class: "soft" }, all.runs.some((run) => run.reading) ? "reading the record…" : "no figures on record"));
      wall.give(all.runs, shown || []);
      due = performance.now() + (all.runs.some((run) => run.reading) ? READING_MS : CURVES_MS);
    } catch (error) {
      patch(chips, el("span", { class: "warn" }, error.message));
      due = performance.now() + CURVES_MS;
    } finally {
      asking = false;
    }
  }

  filter.oninput = () => data && draw();
  const timer = setInterval(() => {
    load();
    curves();
  }, 500);
  load();
  return { end: () => clearInterval(timer) };
}

export function run(root, parameters, id) {
  const head = el("section", { class: "card run", "aria-label": "Run" });
  const why = el("section", { "aria-label": "Cause" });
  const charts = el("section", { class: "charts", "aria-label": "Curves" });
  const used = el("div", { class: "charts" });
  const about = el("section");
  root.append(head, why, charts, el("details", { class: "fold", open: true }, el("summary", {}, "Resources of each node"), used), about);
  const wall = new CurveWall(charts), resources = new ResourceWall(used);
  let due = 0, asking = false, explained = "", live = null;

  async function load() {
    if (asking || performance.now() < due) return;
    asking = true;
    try {
      const [data] = (await get("/api/curves", { run: id })).runs;
      due = performance.now() + (data.reading ? READING_MS : CURVES_MS);
      draw(data);
      if (!data.reading && ["failed", "unknown", "stopped"].includes(stateOf(data)) && explained !== `${data.state} ${data.ended_at}`) {
        explained = `${data.state} ${data.ended_at}`;
        patch(why, cause(await get(`/api/runs/${encodeURIComponent(id)}/why`)));
      }
    } catch (error) {
      patch(head, el("h1", { class: "mono" }, id), el("p", { class: "warn" }, error.message));
      due = performance.now() + CURVES_MS;
    } finally {
      asking = false;
    }
  }

  function stateOf(data) {
    return live?.run_id === data.run_id ? live.state : data.state;
  }

  function draw(data) {
    const state = stateOf(data);
    const active = live?.run_id === data.run_id && ["running", "created"].includes(live.state);
    patch(
      head,
      el(
        "div", { class: "head" },
        el("h1", {}, state ? pill(state) : null, " ", el("span", { class: "mono" }, data.run_id)),
        el(
          "p", { class: "buttons" },
          el("a", { class: "button", href: `#/logs?run=${encodeURIComponent(data.run_id)}` }, "Logs"),
          active ? el("button", { type: "button", onclick: () => click("restart", data.run_id) }, "Restart…") : null,
          active ? el("button", { type: "button", class: "danger", onclick: () => click("stop", data.run_id) }, "Stop…") : null,
        ),
      ),
      data.command ? el("p", { class: "soft" }, el("code", {}, data.command)) : null,
      data.reason ? el("p", { class: "reason" }, data.reason) : null,
      data.reading ? el("p", { class: "soft" }, "reading the record…") : null,
      data.begun_at ? el(
        "dl", { class: "tiles" },
        data.progress ? fact("Progress", data.progress) : fact("Step", data.steps === null ? "–" : `${numbers(data.steps)}${data.final_step ? ` of ${numbers(data.final_step)}` : ""}`),
        fact("Duration", span(data.seconds)),
        fact("Began", clock(data.begun_at)),
        fact("Ranks", `${data.world_size || "–"}${data.backend ? `, ${data.backend}` : ""}`),
        fact("Sync method", data.sync || "–"),
        fact("Mean speed", data.measured_per_s === null ? "–" : `${short(data.measured_per_s)} ${data.unit}/s`),
        fact("By", data.user || "–"),
      ) : null,
    );
    const names = inOrder(new Set((data.curves || []).filter((one) => one.group !== "resources").map((one) => one.name)));
    wall.give([data], names);
    resources.give(data);
    patch(about, timeline(data), machines(data), options(data), samples(data));
  }

  load();
  const timer = setInterval(load, 500);
  return {
    update(snapshot) {
      live = snapshot.run;
    },
    end: () => clearInterval(timer),
  };
}

function cause(data) {
  if (!data.failure) return null;
  const found = data.failure.cause;
  return el(
    "div", { class: "card box bad" },
    el("h2", {}, data.headline),
    found ? el("p", {}, found.explanation) : null,
    found?.frame ? el("p", {}, "where: ", el("code", {}, found.frame)) : null,
    (found?.evidence || data.failure.lines || []).length ? el("pre", {}, (found?.evidence || data.failure.lines).join("\n")) : null,
    found ? el("ul", {}, found.fix.map((step) => el("li", {}, step))) : null,
    data.consequences.length ? el("p", { class: "soft" }, `after that: ${data.consequences.join("; ")}`) : null,
    data.owner ? el("p", { class: "soft" }, data.owner) : null,
  );
}

function timeline(data) {
  if (!data.moments?.length) return null;
  const total = Math.max(1e-9, data.seconds);
  const places = data.phases.map((one) => el(
    "rect", { class: `phase p-${one.name}`, x: (700 * one.begin_s / total).toFixed(1), y: 0, height: 14, width: Math.max(1, 700 * (one.end_s - one.begin_s) / total).toFixed(1) },
  ));
  const names = data.phases.map((one) => `${one.name} ${span(one.end_s - one.begin_s)}`);
  return [
    el("h2", {}, "Timeline"),
    data.phases.length ? el("svg", { class: "phases", viewBox: "0 0 700 14", preserveAspectRatio: "none", role: "img", "aria-label": `phases: ${names.join(", ")}` }, places) : null,
    el("p", { class: "legend" }, data.phases.map((one, n) => el("span", {}, el("i", { class: `key p-${one.name}` }), names[n]))),
    el("ol", { class: "events" }, [...data.moments].reverse().map((one) => el(
      "li", { class: one.kind === "fault" ? "bad" : "" }, el("time", {}, span(one.at_s)), ` ${one.node ? `${one.node}: ` : ""}${one.text}`,
    ))),
  ];
}

function machines(data) {
  const columns = [
    { title: "Node", class: "name", cell: (one) => el("b", {}, one.node) },
    { title: "Ranks", cell: (one) => (one.ranks[0] === one.ranks[1] ? one.ranks[0] : `${one.ranks[0]}–${one.ranks[1]}`) },
    { title: "Device", cell: (one) => [one.device, one.gpus.length ? ` ${one.gpus.join(", ")}` : ""].join("") },
    { title: "Address", cell: (one) => one.address },
    { title: "CPUs", class: "number", cell: (one) => short(one.cpus) },
    { title: "Memory", class: "number", cell: (one) => gib(one.memory_mib) },
    { title: "Link", class: "number", cell: (one) => (one.link_mbit_s === null ? "–" : `${short(one.link_mbit_s)} Mbit/s`) },
    { title: "Share", class: "number", cell: (one) => percent(one.share) },
    { title: "Note", class: "wide", cell: (one) => (one.left_out ? `left out: ${one.left_out}` : "") },
  ];
  const found = table(columns, data.machines || [], { caption: "Machines of the run", key: (one) => one.node });
  return found ? [el("h2", {}, "Machines"), found] : null;
}

function options(data) {
  const columns = [
    { title: "Option", class: "name", cell: (one) => el("code", {}, one.name) },
    { title: "Value", class: "wide", cell: (one) => el("code", {}, one.value) },
    { title: "From", cell: (one) => one.origin },
  ];
  const found = table(columns, data.options || [], { caption: "Options of the run", key: (one) => `${one.origin} ${one.name}` });
  return found ? el("details", { class: "fold" }, el("summary", {}, `Options (${data.options.length})`), found) : null;
}

function samples(data) {
  if (!data.samples?.length) return null;
  return el("details", { class: "fold" }, el("summary", {}, "Text that the model wrote"), data.samples.map((one) => el("pre", {}, `${one.step === null ? "" : `step ${numbers(one.step)}\n`}${one.text}`)));
}
