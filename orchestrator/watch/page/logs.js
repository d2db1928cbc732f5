// Log lines of a run, as they come or searched; and a search in all runs on record.

import { Refused, get, poll } from "./api.js";
import { clock, el, patch } from "./dom.js";

const LIVE_MS = 2000, PAUSE_MS = 300;

export function logs(root, parameters) {
  const run = el("select", { "aria-label": "Run" });
  const node = el("select", { "aria-label": "Node" }, el("option", { value: "" }, "all nodes"));
  const rank = el("input", { type: "number", min: 0, placeholder: "rank", "aria-label": "Rank", class: "narrow" });
  const level = el("select", { "aria-label": "Least level" },
    el("option", { value: "info" }, "all levels"), el("option", { value: "warning" }, "warnings and errors"), el("option", { value: "error" }, "errors"));
  const words = el("input", { type: "search", placeholder: "Words of a line", "aria-label": "Words of a line", "data-find": true });
  const all = el("input", { type: "checkbox", id: "all-runs" });
  const live = el("button", { type: "button", "aria-pressed": "true", class: "chip" }, "Live");
  const about = el("p", { class: "soft", role: "status" });
  const back = el("button", { type: "button", hidden: true });
  const lines = el("ol", { class: "lines", tabindex: 0, "aria-label": "Log lines" });
  root.append(
    el("h1", {}, "Logs"),
    el("div", { class: "bar-of-tools" }, run, node, rank, level, words, el("label", { for: "all-runs" }, all, " search all runs"), live),
    about, el("p", {}, back), lines,
  );
  let wantedNode = parameters.get("node") || "";
  let older = [], reached = "", isNew = true, wanted = parameters.get("run") || "";
  words.value = parameters.get("words") || "";
  let drawn = "";

  const query = () => ({ run: run.value || wanted, node: node.value || wantedNode, rank: rank.value, level: level.value, words: words.value.trim() });
  const isLive = () => live.getAttribute("aria-pressed") === "true";

  async function names() {
    try {
      const { runs } = await get("/api/runs");
      const chosen = run.value || wanted || runs[0]?.run_id || "";
      const known = runs.map((one) => one.run_id);
      patch(run, [...(chosen && !known.includes(chosen) ? [chosen] : []), ...known].map((one) => el("option", { value: one }, one)));
      run.value = chosen;
      if (!chosen) about.textContent = "No runs yet.";
    } catch (error) {
      about.textContent = error.message;
    }
    begin();
  }

  function begin() {
    older = [];
    reached = "";
    isNew = true;
    newest.now();
  }

  const newest = poll(async (isCurrent) => {
    const given = query();
    if ((!given.run && !all.checked) || (!isNew && (!isLive() || older.length))) return 0;
    if (all.checked && given.words) {
      const found = await get("/api/search", { words: given.words });
      if (!isCurrent()) return;
      draw([...found.results].reverse(), "", true, found.complete);
    } else {
      const found = await get("/api/logs", given);
      if (!isCurrent() || older.length) return;
      nodes(found.nodes);
      reached = found.reached;
      draw(found.lines, reached, false);
    }
    isNew = false;
  }, LIVE_MS, (error) => (about.textContent = error instanceof Refused ? error.message : "the controller cannot be reached"));

  async function further() {
    const asked = JSON.stringify(query()), before = reached;
    back.disabled = true;
    try {
      const found = await get("/api/logs", { ...query(), until: before });
      if (asked !== JSON.stringify(query())) return;
      const known = new Set(older.concat(current).map(keyOf));
      older = [...found.lines.filter((line) => !known.has(keyOf(line))), ...(older.length ? older : current)];
      reached = found.reached;
      draw(older, reached, false);
    } catch (error) {
      about.textContent = error.message;
    } finally {
      back.disabled = false;
    }
  }

  const keyOf = (line) => `${line.time} ${line.node} ${line.rank} ${line.text}`;
  let current = [];

  function nodes(names) {
    const chosen = node.value || wantedNode;
    wantedNode = "";
    patch(node, el("option", { value: "" }, "all nodes"), (names.includes(chosen) || !chosen ? names : [chosen, ...names]).map((one) => el("option", { value: one }, one)));
    node.value = chosen;
  }

  function draw(found, before, runs, complete = true) {
    current = found;
    const text = `${before} ${found.length} ${found.length ? keyOf(found[found.length - 1]) : ""} ${found.length ? keyOf(found[0]) : ""}`;
    back.hidden = !before || runs;
    back.textContent = before ? `Look further back than ${clock(before, true)}` : "";
    if (!complete) about.textContent = `${found.length} lines; not all were searched: orch search ${words.value.trim()}`;
    else about.textContent = found.length
      ? `${found.length} lines${before ? `, back to ${clock(before, true)}` : ", from the beginning"}${runs ? " of all runs" : ""}`
      : before ? `Nothing found back to ${clock(before, true)}.` : "No line matches, or none is on record yet.";
    if (text === drawn) return;
    drawn = text;
    const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
    patch(lines, found.map((line) => el(
      "li", { class: line.level && line.level !== "info" ? line.level : null },
      el("time", { title: line.time }, clock(line.time, true)),
      el("span", { class: "who" }, runs ? el("a", { href: `#/logs?run=${encodeURIComponent(line.run_id)}` }, line.run_id) : null, runs ? " " : null, line.node, line.rank === null ? "" : ` r${line.rank}`),
      el("span", { class: "text" }, line.text || " "),
    )));
    if (atEnd) lines.scrollTop = lines.scrollHeight;
  }

  let typing = 0;
  words.oninput = () => {
    clearTimeout(typing);
    typing = setTimeout(begin, PAUSE_MS);
  };
  run.onchange = node.onchange = level.onchange = rank.onchange = all.onchange = begin;
  back.onclick = further;
  live.onclick = () => {
    live.setAttribute("aria-pressed", String(!isLive()));
    newest.now();
  };
  names();
  return {
    end() {
      newest.end();
      clearTimeout(typing);
    },
  };
}
