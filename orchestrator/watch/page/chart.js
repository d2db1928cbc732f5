// Charts of curves that Python has thinned, drawn by uPlot (vendor/): drag to zoom, one cursor for all charts over the
// same axis, arrow keys. Colours come from the style sheet, first, best and last values from Python.

import { el, numbers, patch, short, span } from "./dom.js";

export const COLOURS = 8;
const HEIGHT = 180, LOG_FROM = 50;
const MOST_ROWS = 8; // more curves than that have their values folded
const STEPS = Array.from({ length: 30 }, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 4320000];
const charts = new Set();

// A canvas takes no light-dark(): the root, which has no outline, resolves a variable to the color of the theme.
function css(name) {
  document.documentElement.style.outlineColor = `var(${name})`;
  return getComputedStyle(document.documentElement).outlineColor;
}

const compact = (value) => {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  const found = Number(value.toPrecision(3));
  return found && Math.abs(found) < 1e-3 ? found.toExponential() : String(found);
};

// Give up the charts that are not on the page any more, and draw the others again: the view or the theme has changed.
export function refresh() {
  for (const one of charts) {
    if (one.node.isConnected) one.redraw();
    else one.end();
  }
}

// A chart: give() sets its series [{name, colour, dashed, x, y, first, best, low, high, last}]; over is "step" or "time"
// in seconds.
export function chart(title, { unit = "", over = "step", log = false, percent = false } = {}) {
  const where = (x) => (over === "step" ? `step ${numbers(Math.round(x))}` : span(x));
  const whole = el("button", { type: "button", class: "plain", hidden: true, onclick: () => zoom(null) }, "Whole range");
  const scale = el("button", { type: "button", class: "plain", hidden: true, onclick: () => rescale() }, "log");
  const read = el("p", { class: "read" }), plot = el("div", { class: "plot" }, read), values = el("div", { class: "values" });
  const node = el(
    "figure", { class: "chart", tabindex: 0, "data-own": true, "aria-label": `${title}. Left and right arrow keys read the values, + and - zoom.` },
    el("figcaption", {}, el("b", {}, title), unit ? el("span", { class: "soft" }, ` ${unit}`) : null, el("span", { class: "push" }, whole, scale)),
    plot, values,
  );
  let series = [], u = null, drawn = "", wanted = log, isLog = false;
  const own = { node, over, give, redraw: () => u?.redraw(false), point, range, end };
  const observer = new ResizeObserver(() => {
    if (u && plot.clientWidth && plot.clientWidth !== u.width) u.setSize({ width: plot.clientWidth, height: HEIGHT });
    else if (!u) draw();
  });
  observer.observe(plot);
  charts.add(own);

  function give(given) {
    series = given.filter((one) => one.x.length);
    patch(values, valueTable(series, over));
    draw();
  }

  function draw() {
    if (!series.length) return void patch(values, el("p", { class: "soft" }, "no values yet"));
    if (!plot.clientWidth) return; // folded: it is drawn when it is opened
    const all = series.flatMap((one) => [one.low, one.high]), low = Math.min(...all);
    isLog = wanted && low > 0 && (scale.dataset.asked || Math.max(...all) / low >= LOG_FROM);
    scale.hidden = over === "time" || !(low > 0);
    scale.setAttribute("aria-pressed", String(Boolean(isLog)));
    const data = series.length > 1 ? uPlot.join(series.map((one) => [one.x, one.y])) : [series[0].x, series[0].y];
    const shape = JSON.stringify([Boolean(isLog), series.map((one) => [one.name, one.colour, one.dashed])]);
    if (u && shape === drawn) {
      if (whole.hidden) u.setData(data);
      else {
        u.setData(data, false);
        u.redraw();
      }
      return;
    }
    u?.destroy();
    drawn = shape;
    read.textContent = "";
    u = new uPlot(options(), data, plot);
  }

  function options() {
    const axis = { stroke: () => css("--soft"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const words = (write) => (_, found) => found.map((one) => (one === null ? null : write(one)));
    return {
      width: plot.clientWidth, height: HEIGHT, padding: [8, 12, 0, 0], legend: { show: false },
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1, range: isLog ? (_, low, high) => uPlot.rangeLog(low, high, 10, false) : bounds } },
      axes: [
        { ...axis, size: 26, space: 64, incs: over === "step" ? STEPS : TIMES, values: words(over === "step" ? compact : span) },
        { ...axis, size: (_, found) => 14 + 6.2 * Math.max(3, ...(found || []).map((one) => one?.length || 0)), space: 32, values: words(compact) },
      ],
      series: [{}, ...series.map((one) => ({ width: 1.6, spanGaps: true, points: { show: one.x.length === 1 }, dash: one.dashed ? [5, 3] : undefined, stroke: () => css(`--c${one.colour % COLOURS}`) }))],
      cursor: { y: false, sync: { key: over, scales: ["x", null] }, hover: { skip: [undefined, null] }, drag: { dist: 6 } },
      hooks: { setCursor: [showValues], setScale: [(_, key) => key === "x" && zoomed()] },
    };
  }

  function bounds(_, low, high) {
    if (low === null) return [0, 1];
    if (percent) return [0, Math.max(100, high)];
    const bottom = low >= 0 && !log && low < high / 2 ? 0 : low, room = (high - bottom) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [bottom === 0 ? 0 : bottom - room, high + room];
  }

  function showValues(self) {
    if (!(self.cursor.left >= 0)) return void (read.textContent = "");
    const found = series.map((one, n) => [one.name, self.data[n + 1][self.cursor.idxs[n + 1]]]).filter(([, y]) => Number.isFinite(y));
    const sorted = [...found].sort(([, a], [, b]) => a - b);
    const shown = found.length > MOST_ROWS ? [sorted[0], sorted[sorted.length - 1]] : found;
    const at = where(self.data[0][self.cursor.idx]);
    read.textContent = `${at}: ${shown.map(([name, y]) => `${found.length > 1 ? `${name} ` : ""}${short(y)}`).join(" · ")}`;
  }

  function zoomed() {
    const xs = u?.data[0];
    whole.hidden = !xs || (u.scales.x.min <= xs[0] && u.scales.x.max >= xs[xs.length - 1]);
  }

  function range(given) {
    if (given) u?.setScale("x", given);
    else u?.setData(u.data);
  }

  function point(x) {
    u?.setCursor({ left: x === null ? -10 : u.valToPos(x, "x"), top: 1 });
  }

  const alike = () => [...charts].filter((one) => one.over === over);
  const zoom = (given) => alike().forEach((one) => one.range(given));
  const hide = () => alike().forEach((one) => one.point(null));

  function rescale() {
    wanted = !isLog;
    scale.dataset.asked = "yes";
    draw();
  }

  function end() {
    observer.disconnect();
    charts.delete(own);
    u?.destroy();
    u = null;
  }

  node.onblur = hide;
  node.onkeydown = (event) => {
    if (!u || event.target !== node) return;
    const xs = u.data[0], last = xs.length - 1, at = u.cursor.left >= 0 ? u.cursor.idx : -1;
    const place = { ArrowLeft: at < 0 ? last : at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    const { min, max } = u.scales.x, middle = at < 0 ? (min + max) / 2 : xs[at];
    if (place !== undefined) {
      read.setAttribute("aria-live", "polite");
      const x = xs[Math.max(0, Math.min(last, place))];
      alike().forEach((one) => one.point(x));
    } else if (event.key === "+") zoom({ min: (min + middle) / 2, max: (max + middle) / 2 });
    else if (event.key === "-") zoom(null);
    else return;
    event.preventDefault();
  };
  return own;
}

// First, best and last value of each curve; of a figure without a better direction, its range.
function valueTable(series, over) {
  if (!series.length) return null;
  const hasBest = series.some((one) => one.best !== null);
  const middle = (one) => (one.best ? `${short(one.best[1])} at ${over === "step" ? numbers(one.best[0]) : span(one.best[0])}` : one.low === one.high ? short(one.low) : `${short(one.low)} – ${short(one.high)}`);
  const rows = el(
    "table", { class: "small" },
    el("thead", {}, el("tr", {}, ["", "First", hasBest ? "Best" : "Range", "Last"].map((one) => (one ? el("th", { scope: "col" }, one) : el("td"))))),
    el("tbody", {}, series.map((one) => el(
      "tr", {}, el("th", { scope: "row" }, el("i", { class: `key b${one.colour % COLOURS}${one.dashed ? " dashed" : ""}` }), one.name),
      [short(one.first), middle(one), short(one.last)].map((text) => el("td", {}, text)),
    ))),
  );
  return series.length > MOST_ROWS ? el("details", {}, el("summary", {}, `Values of ${series.length} curves`), rows) : rows;
}
