// All runs with the curves of those that are chosen; and one run in detail.

import { get } from "./api.js";
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
  const sections = new RunSections(root);
  let due = 0, asking = false, explained = "", live = null, drawn = false;

  async function load() {
    if (asking || performance.now() < due) return;
    asking = true;
    try {
      const [data] = (await get("/api/curves", { run: id })).runs;
      due = performance.now() + (data.reading ? READING_MS : CURVES_MS);
      const own = live?.run_id === data.run_id ? live : data;
      const { lines } = await get("/api/logs", { run: id, number: LAST_LINES });
      sections.draw({ ...data, last_lines: lines, lines: null }, { state: own.state, buttons: buttons(data, own) });
      if (!drawn) sections.scroll();
      drawn = true;
      if (!data.reading && ["failed", "unknown", "stopped"].includes(own.state) && explained !== `${data.state} ${data.ended_at}`) {
        explained = `${data.state} ${data.ended_at}`;
        sections.explain(await get(`/api/runs/${encodeURIComponent(id)}/why`));
      }
    } catch (error) {
      patch(sections.head, el("h1", { class: "mono" }, id), el("p", { class: "warn" }, error.message));
      due = performance.now() + CURVES_MS;
    } finally {
      asking = false;
    }
  }

  function buttons(data, own) {
    const active = own === live && live.active;
    return [
      el("a", { class: "button", href: `#/logs?run=${encodeURIComponent(data.run_id)}` }, "Logs"),
      active ? el("button", { type: "button", onclick: () => click("restart", data.run_id) }, "Restart…") : null,
      active ? el("button", { type: "button", class: "danger", onclick: () => click("stop", data.run_id) }, "Stop…") : null,
    ];
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
