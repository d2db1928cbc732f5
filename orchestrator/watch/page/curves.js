// Charts of runs: one for each figure, with the curves of all runs; one for each resource, with a curve of each node.

import { chart } from "./chart.js";

const TITLES = {
  per_s: "throughput", lr: "learning rate", grad_norm: "gradient norm", mfu: "model FLOPs utilization",
  micro_batch: "micro-batch", tflops: "TFLOP/s", waiting: "share waiting for data", exchanging: "share waiting for the network", of_forecast: "speed divided by forecast", cpu: "CPU",
};
const LOGARITHMIC = new Set(["loss", "grad_norm", "perplexity"]);
const FIRST = ["loss", "per_s", "lr", "grad_norm"];

export const titleOf = (name) => TITLES[name] || name.replaceAll("_", " ");

// Names of figures, the usual ones first.
export function inOrder(names) {
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  return [...names].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

// Names of the figures over steps that runs have.
export const figuresOf = (runs) => inOrder(new Set(runs.flatMap((run) => (run.curves || []).filter((one) => one.group !== "resources").map((one) => one.name))));

class Wall {
  constructor(root) {
    this.root = root;
    this.charts = new Map();
  }

  // Draw these curves by the name of their chart, and give up the charts of other names.
  show(curves, settings) {
    for (const [name, one] of this.charts) {
      if (curves.has(name)) continue;
      one.node.remove();
      one.end();
      this.charts.delete(name);
    }
    for (const [name, found] of curves) {
      if (!this.charts.has(name)) this.charts.set(name, chart(titleOf(name), { unit: found[0].unit, ...settings(name, found[0]) }));
      const one = this.charts.get(name);
      if (one.node.parentNode !== this.root) this.root.append(one.node);
      one.give(found);
    }
  }
}

// Charts of several runs by figure.
export class CurveWall extends Wall {
  give(runs, names) {
    const named = (run, one) => [runs.length > 1 ? run.run_id : one.group === "validation" ? "" : "training", one.group === "validation" ? "validation" : ""].filter(Boolean).join(" ");
    const curves = new Map();
    for (const name of names) {
      const found = runs.flatMap((run, colour) =>
        (run.curves || []).filter((one) => one.name === name && one.group !== "resources").map((one) => ({ ...one, colour, dashed: one.group === "validation", name: named(run, one) })));
      if (found.length) curves.set(name, found);
    }
    this.show(curves, (name) => ({ log: LOGARITHMIC.has(name) }));
  }
}

// Charts of what each node uses over time.
export class ResourceWall extends Wall {
  give(run) {
    const all = (run.curves || []).filter((one) => one.group === "resources");
    const nodes = [...new Set([...(run.machines || []).map((one) => one.node), ...all.map((one) => one.node)])];
    const curves = new Map();
    for (const one of [...all].sort((a, b) => nodes.indexOf(a.node) - nodes.indexOf(b.node))) {
      if (!curves.has(one.name)) curves.set(one.name, []);
      curves.get(one.name).push({ ...one, name: one.node, colour: nodes.indexOf(one.node) });
    }
    this.show(curves, (_, one) => ({ over: "time", percent: one.unit === "%" }));
  }
}
