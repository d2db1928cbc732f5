// Nodes one by one; checkpoints on the nodes; findings of the check of the machines.

import { get, poll } from "./api.js";
import { examine } from "./actions.js";
import { nodePill } from "./now.js";
import { bytes, clock, el, gib, meter, numbers, patch, pill, span, sparkline, table } from "./dom.js";

const ASK_MS = 2000;

export function nodes(root) {
  const each = el("div", { class: "cards" });
  root.append(el("h1", {}, "Nodes"), each);
  return {
    update(snapshot) {
      patch(each, snapshot.nodes.length ? snapshot.nodes.map(card) : el("p", { class: "soft" }, "No nodes: the inventory is gone."));
    },
  };
}

function card(node) {
  const used = node.usage;
  return el(
    "section", { class: `card ${node.silent ? "old" : ""}`, "data-key": node.name, "aria-label": node.name },
    el("h2", {}, node.name, " ", nodePill(node)),
    node.problem ? warning(node.problem) : null,
    used ? [
      node.silent ? el("p", { class: "soft" }, `values are ${span(node.usage_age_s)} old`) : null,
      row("CPU", `${Math.round(used.cpu_percent)} % of ${used.cpus}`, used.cpu_percent / 100),
      row("Memory", `${gib(used.ram_used_mib)} of ${gib(used.ram_limit_mib)}`, used.ram_used_mib / used.ram_limit_mib),
      used.swap_used_mib ? row("Swap", gib(used.swap_used_mib)) : null,
      row("Disk free", gib(used.disk_free_mib)),
      row("Disk", `${used.disk_read_mib_s.toFixed(1)} read, ${used.disk_write_mib_s.toFixed(1)} written MiB/s`),
      row("Network", `${used.network_in_mib_s.toFixed(1)} in, ${used.network_out_mib_s.toFixed(1)} out MiB/s`),
      used.gpus.map((gpu) => [
        row(`GPU ${gpu.index}`, `${gpu.name}${gpu.utilization_percent === null ? "" : `, ${gpu.utilization_percent} %`}`, gpu.utilization_percent === null ? undefined : gpu.utilization_percent / 100),
        gpu.memory_used_mib === null || !gpu.memory_total_mib ? null : row("", `${gib(gpu.memory_used_mib)} of ${gib(gpu.memory_total_mib)}`, gpu.memory_used_mib / gpu.memory_total_mib),
        row("", [gpu.temperature_c === null ? "" : `${gpu.temperature_c} °C`, gpu.power_w === null ? "" : `${Math.round(gpu.power_w)} W`, gpu.clock_mhz === null ? "" : `${gpu.clock_mhz} MHz`, gpu.slowed_by ? `slowed by ${gpu.slowed_by}` : ""].filter(Boolean).join(", ") || "–"),
      ]),
      el("div", { class: "courses" }, course("CPU", node.cpu_history), course("GPUs", node.gpu_history)),
    ] : el("p", { class: "soft" }, "no values yet"),
    el("p", {}, el("a", { href: `#/logs?node=${encodeURIComponent(node.name)}` }, "Logs"), el("span", { class: "soft" }, ` ${numbers(node.lines)} lines since this page was started`)),
  );
}

function row(name, text, share) {
  return el("div", { class: "row" }, el("span", { class: "soft" }, name), el("span", {}, text), share === undefined ? null : meter(share, `${name || "memory"}: ${text}`));
}

function course(name, values) {
  const drawn = sparkline(values, `${name}, course`, 0, 100);
  return drawn ? el("div", {}, el("small", { class: "soft" }, `${name}, 0 to 100 %`), drawn) : null;
}

export function checkpoints(root) {
  const list = el("div");
  root.append(el("h1", {}, "Checkpoints"), list);
  return poll(async () => {
    const data = await get("/api/checkpoints");
    const silent = Object.entries(data.unreachable);
    const columns = [
      { title: "Run", class: "name", cell: (one) => el("a", { href: `#/run/${encodeURIComponent(one.run_id)}`, class: "mono" }, one.run_id) },
      { title: "Step", class: "number", cell: (one) => numbers(one.step) },
      { title: "Node", cell: (one) => one.node },
      { title: "State", class: "state", cell: (one) => [pill(one.problem ? "damaged" : one.hashed ? "sound" : "complete"), one.best ? el("span", { class: "pill s-good" }, "best") : null] },
      { title: "Size", class: "number", cell: (one) => bytes(one.bytes) },
      { title: "Age", class: "number", cell: (one) => span(one.age_s) },
      { title: "Copies", class: "number", cell: (one) => (one.problem ? "–" : one.copies) },
      { title: "Folder", class: "wide", cell: (one) => [el("code", {}, one.folder), one.problem ? el("span", { class: "warn" }, ` ${one.problem}`) : null] },
    ];
    patch(
      list,
      el("p", { class: "soft" }, !data.asked ? "asking the nodes…" : data.checkpoints.length ? `as of ${span(data.age_s)} ago; sizes are compared, not hashes: ` : ["no checkpoints on the nodes that answered"], data.checkpoints.length ? el("code", {}, "orch checkpoints verify RUN") : null),
      data.problem ? warning(data.problem) : null,
      silent.map(([name, text]) => warning(`${name} did not answer: ${text}`)),
      table(columns, data.checkpoints, { caption: "Checkpoints", key: (one) => `${one.node} ${one.folder}` }),
    );
  }, ASK_MS, (error) => patch(list, warning(error.message)));
}

const warning = (text) => el("p", { class: "warn" }, text);
const MARKS = { error: "bad", warning: "warn", info: "" };

export function findings(root) {
  const list = el("div");
  const begin = el("button", { type: "button", onclick: examine }, "Check the machines now");
  root.append(
    el("h1", {}, "Findings"),
    el("p", { class: "soft" }, "Everything that would break a run, and how to fix it. The check takes some seconds and changes nothing: ", el("code", {}, "orch doctor")),
    el("p", {}, begin), list,
  );
  const asked = poll(async () => patch(list, report((await get("/api/findings")).findings)), ASK_MS, (error) => patch(list, warning(error.message)));
  return {
    update(snapshot) {
      const running = snapshot.actions.some((one) => one.verb === "doctor" && one.code === null);
      begin.disabled = running;
      begin.textContent = running ? "Checking…" : "Check the machines now";
    },
    end: asked.end,
  };
}

function report(data) {
  if (!data) return el("p", { class: "soft" }, "Not checked since this page was started.");
  const gaps = Object.entries(data.not_checked).flatMap(([area, nodes]) => Object.entries(nodes).map(([node, why]) => `${area}: ${node} ${why}`));
  return [
    el("p", {}, `checked at ${clock(data.at, true)}: `, data.unfit ? el("b", { class: "bad" }, "a launch would be refused, or may fail") : el("b", { class: "good" }, data.findings.length ? "nothing that keeps a run from working" : "no problems found")),
    gaps.map((one) => warning(`not checked: ${one}`)),
    data.findings.map((one) => el(
      "section", { class: `card box ${MARKS[one.severity]}` },
      el("h2", {}, one.sentence, " ", el("small", { class: "soft" }, one.id)),
      one.cause ? el("p", { class: "soft" }, one.cause) : null,
      one.fix ? el("p", {}, "fix: ", el("code", {}, one.fix)) : null,
      el("p", { class: "soft" }, el("code", {}, `orch explain ${one.id}`)),
    )),
  ];
}
