// Charts of curves that the server has thinned: drawn as SVG, read by pointer and by arrow keys.

import { el, short, span, numbers } from "./dom.js";

const HEIGHT = 190, LEFT = 48, RIGHT = 10, TOP = 10, BOTTOM = 24;
const LOG_FROM = 50;
export const COLOURS = 8;

function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * (1 - 1e-9));
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let n = Math.floor(low); n <= Math.ceil(high); n += 1) {
    for (const part of high - low < 2 ? [1, 2, 5] : [1]) {
      const at = n + Math.log10(part);
      if (at >= low && at <= high) found.push(at);
    }
  }
  return found;
}

const compact = (value) => {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Number(value.toPrecision(3)));
};

// A chart: give() sets its series [{name, colour, dashed, x, y}]; over is "step" or "time" (seconds).
export function chart(title, { unit = "", over = "step", log = false, percent = false } = {}) {
  const tip = el("div", { class: "tip", hidden: true });
  const plot = el("div", { class: "plot" }, tip);
  const legend = el("p", { class: "legend" });
  const note = el("p", { class: "note" });
  const where = (x) => (over === "step" ? `step ${numbers(Math.round(x))}` : span(x));
  const node = el(
    "figure", { class: "chart", tabindex: 0, "data-own": true },
    el("figcaption", {}, el("b", {}, title), unit ? el("span", { class: "soft" }, ` ${unit}`) : null), plot, legend, note,
  );
  let series = [], scale = null, chosen = null;

  function draw() {
    const width = plot.clientWidth || 320;
    const drawn = series.filter((one) => one.x.length);
    const xs = drawn.flatMap((one) => [one.x[0], one.x[one.x.length - 1]]);
    const ys = drawn.flatMap((one) => one.y).filter((y) => Number.isFinite(y));
    plot.querySelector("svg")?.remove();
    if (!ys.length) {
      note.textContent = "no values yet";
      return;
    }
    let low = Math.min(...ys), high = Math.max(...ys);
    const isLog = log && low > 0 && high / low >= LOG_FROM;
    const mapped = (y) => (isLog ? Math.log10(Math.max(y, 1e-300)) : y);
    if (isLog) [low, high] = [Math.log10(low), Math.log10(high)];
    else if (percent) [low, high] = [0, Math.max(100, high)];
    else {
      if (low >= 0 && !log && low < high / 2) low = 0;
      const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      [low, high] = [low === 0 ? 0 : low - room, high + room];
    }
    const [first, last] = [Math.min(...xs), Math.max(...xs)];
    const px = (x) => LEFT + (last > first ? (x - first) / (last - first) : 0.5) * (width - LEFT - RIGHT);
    const py = (y) => HEIGHT - BOTTOM - (high > low ? (mapped(y) - low) / (high - low) : 0.5) * (HEIGHT - TOP - BOTTOM);
    scale = { px, py, first, last, width };
    const values = isLog ? logTicks(low, high).map((at) => 10 ** at) : ticks(low, high, 4);
    const grid = values.flatMap((value) => {
      const y = py(value).toFixed(1);
      return [
        el("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
        el("text", { x: LEFT - 6, y: Number(y) + 4, "text-anchor": "end" }, compact(value)),
      ];
    });
    const steps = ticks(first, last, Math.max(2, Math.floor(width / 110)));
    const below = steps.filter((x) => over !== "step" || x === Math.round(x)).map((x) =>
      el("text", { x: Math.min(px(x), width - 18).toFixed(1), y: HEIGHT - 7, "text-anchor": "middle" },
        over === "step" ? compact(x) : span(x)),
    );
    const lines = drawn.map((one) => {
      const points = one.x.map((x, n) => [px(x).toFixed(1), one.y[n]]).filter(([, y]) => Number.isFinite(y));
      if (points.length === 1) {
        return el("circle", { class: `dot b${one.colour % COLOURS}`, cx: points[0][0], cy: py(points[0][1]), r: 3 });
      }
      const d = `M${points.map(([x, y]) => `${x} ${py(y).toFixed(1)}`).join("L")}`;
      return el("path", { class: `line c${one.colour % COLOURS}${one.dashed ? " dashed" : ""}`, d });
    });
    const svg = el(
      "svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, "aria-hidden": "true" },
      grid, below, lines, el("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }),
    );
    plot.prepend(svg);
    describe(drawn, isLog);
    if (chosen !== null) point(chosen);
  }

  function describe(drawn, isLog) {
    const words = drawn.map((one) => {
      const kept = one.y.filter((y) => Number.isFinite(y));
      const name = drawn.length > 1 ? `${one.name}: ` : "";
      return `${name}last ${short(kept[kept.length - 1])}, lowest ${short(Math.min(...kept))}, highest ${short(Math.max(...kept))}`;
    });
    const keys = "Left and right arrow keys read the values.";
    node.setAttribute("aria-label", `${title}${isLog ? ", logarithmic" : ""}. ${words.join("; ")}. ${keys}`);
    note.textContent = drawn.length === 1 ? `${words[0]}${isLog ? " · log scale" : ""}` : isLog ? "log scale" : "";
    legend.replaceChildren(
      ...(drawn.length > 1 || drawn[0]?.dashed
        ? drawn.map((one) =>
          el("span", {}, el("i", { class: `key b${one.colour % COLOURS}${one.dashed ? " dashed" : ""}` }), one.name))
        : []),
    );
  }

  // Show the values nearest to x.
  function point(x) {
    const cross = plot.querySelector(".cross");
    if (!cross || !scale) return;
    chosen = Math.min(scale.last, Math.max(scale.first, x));
    const rows = series.filter((one) => one.x.length).map((one) => {
      const at = nearest(one.x, chosen);
      return [one, one.x[at], one.y[at]];
    });
    const place = rows.length === 1 ? rows[0][1] : chosen;
    const left = scale.px(place);
    cross.setAttribute("x1", left);
    cross.setAttribute("x2", left);
    cross.setAttribute("visibility", "visible");
    tip.replaceChildren(
      el("b", {}, where(place)),
      ...rows.map(([one, , y]) =>
        el("span", {}, el("i", { class: `key b${one.colour % COLOURS}` }), `${rows.length > 1 ? `${one.name} ` : ""}${short(y)}`)),
    );
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(scale.width - tip.offsetWidth - 4, left + (left > scale.width / 2 ? -tip.offsetWidth - 10 : 10)))}px`;
  }

  function hide() {
    chosen = null;
    tip.hidden = true;
    plot.querySelector(".cross")?.setAttribute("visibility", "hidden");
  }

  plot.onpointermove = (event) => {
    if (!scale) return;
    const inside = event.clientX - plot.getBoundingClientRect().left;
    point(scale.first + ((inside - LEFT) / (scale.width - LEFT - RIGHT)) * (scale.last - scale.first));
  };
  plot.onpointerleave = hide;
  node.onblur = hide;
  node.onkeydown = (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const one = series.find((each) => each.x.length);
    if (!way || !one) return;
    event.preventDefault();
    const at = chosen === null ? (way > 0 ? -1 : one.x.length) : nearest(one.x, chosen);
    point(one.x[Math.min(one.x.length - 1, Math.max(0, at + way))]);
    note.textContent = `${where(chosen)}: ${short(one.y[nearest(one.x, chosen)])}`;
  };
  new ResizeObserver(() => scale && plot.clientWidth !== scale.width && draw()).observe(plot);
  return {
    node,
    give(given) {
      series = given;
      draw();
    },
  };
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

const TITLES = {
  per_s: "throughput", lr: "learning rate", grad_norm: "gradient norm", mfu: "model FLOPs utilization",
  micro_batch: "micro-batch", tflops: "TFLOP/s", waiting: "share waiting for data", exchanging: "share waiting for the network", of_forecast: "speed divided by forecast",
};
const LOGARITHMIC = new Set(["loss", "grad_norm", "perplexity"]);
const FIRST = ["loss", "per_s", "lr", "grad_norm"];

export const titleOf = (name) => TITLES[name] || name;
export const isLogarithmic = (name) => LOGARITHMIC.has(name);

// Names of figures, the usual ones first.
export function inOrder(names) {
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  return [...names].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

// Charts of several runs by figure: keeps a chart for each name, and gives it the curves of all runs.
export class CurveWall {
  constructor(root) {
    this.root = root;
    this.charts = new Map();
  }

  give(runs, names) {
    for (const [name, one] of this.charts) {
      if (!names.includes(name)) {
        one.node.remove();
        this.charts.delete(name);
      }
    }
    for (const name of names) {
      const found = runs.flatMap((run, colour) =>
        (run.curves || []).filter((one) => one.name === name && one.group !== "resources").map((one) => ({
          ...one, colour, dashed: one.group === "validation",
          name: `${runs.length > 1 ? run.run_id : ""}${one.group === "validation" ? " validation" : runs.length > 1 ? "" : "training"}`.trim(),
        })),
      );
      if (!found.length) continue;
      if (!this.charts.has(name)) {
        const unit = found[0].unit;
        this.charts.set(name, chart(titleOf(name), { unit, log: isLogarithmic(name) }));
      }
      const one = this.charts.get(name);
      if (one.node.parentNode !== this.root) this.root.append(one.node);
      one.give(found);
    }
  }
}

// Charts of what each node uses over time; one line per node.
export class ResourceWall {
  constructor(root) {
    this.root = root;
    this.charts = new Map();
  }

  give(run) {
    const curves = (run.curves || []).filter((one) => one.group === "resources");
    const nodes = [...new Set([...(run.machines || []).map((one) => one.node), ...curves.map((one) => one.node)])];
    for (const name of [...new Set(curves.map((one) => one.name))]) {
      const found = curves.filter((one) => one.name === name);
      if (!this.charts.has(name)) {
        const made = chart(name, { unit: found[0].unit, over: "time", percent: found[0].unit === "%" });
        this.charts.set(name, made);
        this.root.append(made.node);
      }
      const lines = found.map((one) => ({ ...one, name: one.node, colour: nodes.indexOf(one.node) }));
      this.charts.get(name).give(lines.sort((a, b) => a.colour - b.colour));
    }
  }
}
