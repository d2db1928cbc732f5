// All runs with the curves of those that are chosen; and one run in detail.

import { get, poll } from "./api.js";
import { click } from "./actions.js";
import { COLOURS } from "./chart.js";
import { CurveWall, inOrder, titleOf } from "./curves.js";
import { ago, clock, el, numbers, patch, pill, short, table } from "./dom.js";
import { RunSections } from "./sections.js";

const LIST_MS = 5000, CURVES_MS = 5000, READING_MS = 700;
const MOST = 10;
const FIGURES = 4;
const LAST_LINES = 40;

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
  let data = null, shown = null, first = !chosen.size;

  const listed = poll(async () => {
    data = await get("/api/runs");
    if (first && data.runs.length) {
      first = false;
      chosen.add(data.runs[0].run_id);
      curves.now();
    }
    draw();
  }, LIST_MS, (error) => (about.textContent = error.message));

  function choose(run, on) {
    if (on && chosen.size >= MOST) return draw();
    if (on) chosen.add(run);
    else chosen.delete(run);
    history.replaceState(null, "", `#/runs?runs=${[...chosen].map(encodeURIComponent).join(",")}`);
    draw();
    curves.now();
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

  const curves = poll(async (isCurrent) => {
    if (!chosen.size) {
      wall.give([], []);
      patch(chips, el("span", { class: "soft" }, "Choose runs in the table."));
      return;
    }
    const all = await get("/api/curves", { run: [...chosen], group: "train,validation", name: shown ? shown.join(",") : "" });
    if (!isCurrent()) return;
    const names = inOrder(new Set(all.runs.flatMap((run) => run.figures))), reading = all.runs.some((run) => run.reading);
    if (!shown && names.length) shown = names.slice(0, FIGURES);
    patch(chips, names.map((name) => el("button", {
      type: "button", "data-key": name, "aria-pressed": String(Boolean(shown?.includes(name))), class: "chip",
      onclick: () => {
        shown = shown.includes(name) ? shown.filter((one) => one !== name) : inOrder([...shown, name]);
        curves.now();
      },
    }, titleOf(name))), names.length ? null : el("span", { class: "soft" }, reading ? "reading the record…" : "no figures on record"));
    wall.give(all.runs, shown || []);
    return reading ? READING_MS : CURVES_MS;
  }, CURVES_MS, (error) => patch(chips, el("span", { class: "warn" }, error.message)));

  filter.oninput = () => data && draw();
  return {
    end() {
      listed.end();
      curves.end();
    },
  };
}

export function run(root, parameters, id) {
  const sections = new RunSections(root);
  let explained = "", live = null, drawn = false;

  const asked = poll(async () => {
    const [data] = (await get("/api/curves", { run: id })).runs;
    const own = live?.run_id === data.run_id ? live : data;
    const { lines } = await get("/api/logs", { run: id, number: LAST_LINES });
    sections.draw({ ...data, last_lines: lines, lines: null }, { state: own.state, buttons: buttons(data, own) });
    if (!drawn) sections.scroll();
    drawn = true;
    if (!data.reading && ["failed", "unknown", "stopped"].includes(own.state) && explained !== `${data.state} ${data.ended_at}`) {
      explained = `${data.state} ${data.ended_at}`;
      sections.explain(await get(`/api/runs/${encodeURIComponent(id)}/why`));
    }
    return data.reading ? READING_MS : CURVES_MS;
  }, CURVES_MS, (error) => patch(sections.head, el("h1", { class: "mono" }, id), el("p", { class: "warn" }, error.message)));

  function buttons(data, own) {
    const active = own === live && live.active;
    return [
      el("a", { class: "button", href: `#/logs?run=${encodeURIComponent(data.run_id)}` }, "Logs"),
      active ? el("button", { type: "button", onclick: () => click("restart", data.run_id, live.user) }, "Restart…") : null,
      active ? el("button", { type: "button", class: "danger", onclick: () => click("stop", data.run_id, live.user) }, "Stop…") : null,
    ];
  }

  return {
    update(snapshot) {
      live = snapshot.run;
    },
    end: asked.end,
  };
}
