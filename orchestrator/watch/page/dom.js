// Elements made of data. Text of nodes only ever becomes a text node; nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "path", "rect", "line", "circle", "g", "text"]);

// An element: properties that begin with "on" are listeners, "class" and others attributes; null and false are left out.
export function el(name, properties = {}, ...children) {
  const node = SHAPES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node[key] = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...content(children));
  return node;
}

function content(children) {
  return children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false && one !== "");
}

// Give an element these children, and keep what is already there: focus, selection and open details survive.
export function patch(parent, ...children) {
  const wanted = content(children);
  wanted.forEach((child, place) => {
    const node = child instanceof Node ? child : document.createTextNode(String(child));
    const old = parent.childNodes[place];
    if (!old) parent.append(node);
    else if (old !== node && !isAlike(old, node)) old.replaceWith(node);
    else if (old !== node) update(old, node);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function isAlike(old, node) {
  return old.nodeName === node.nodeName && old.getAttribute?.("data-key") === node.getAttribute?.("data-key");
}

function update(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!node.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  }
  old.onclick = node.onclick;
  if (old.nodeName === "INPUT") {
    if (old.type === "checkbox") old.checked = node.checked;
    old.onchange = node.onchange;
    return;
  }
  if (!old.hasAttribute("data-own")) patch(old, ...node.childNodes);
}

export const numbers = (value) => Number(value).toLocaleString("en-US");

// Four digits: 0.006, 2.315, 1,240; below that 6e-4.
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e3 && size < 1e7) return numbers(Math.round(value));
  if (size < 1e-3) return Number(value.toPrecision(4)).toExponential();
  return String(Number(value.toPrecision(4)));
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`);

export function gib(mib) {
  if (mib === null || mib === undefined) return "–";
  return mib < 1024 ? `${Math.round(mib)} MiB` : `${(mib / 1024).toFixed(mib < 10240 ? 1 : 0)} GiB`;
}

export function bytes(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  }
  return `${count} B`;
}

// 48 s, 2:05 min, 1:02 h, 3.5 days.
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}:${two(whole % 60)} min`;
  if (whole < 172800) return `${Math.floor(whole / 3600)}:${two(Math.floor((whole % 3600) / 60))} h`;
  return `${(whole / 86400).toFixed(1)} days`;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// Time of day, with the date unless that is today's; a time out of range is shown as it came.
export function clock(at, seconds = false) {
  const date = at instanceof Date ? at : new Date(at), today = new Date();
  if (Number.isNaN(date.getTime())) return typeof at === "string" ? at : "";
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}${seconds ? `:${two(date.getSeconds())}` : ""}`;
  if (date.toDateString() === today.toDateString()) return time;
  const year = date.getFullYear() === today.getFullYear() ? "" : ` ${date.getFullYear()}`;
  return `${MONTHS[date.getMonth()]} ${date.getDate()}${year}, ${time}`;
}

// How long ago a time was: just now, 12 min, 3 h, 5 days; empty for a time that is not past.
export function ago(at) {
  const passed = (Date.now() - new Date(at).getTime()) / 1000;
  if (!(passed >= 0)) return "";
  if (passed < 90) return "just now";
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  return passed < 129600 ? `${Math.round(passed / 3600)} h ago` : `${Math.round(passed / 86400)} days ago`;
}

export function pill(state) {
  return el("span", { class: `pill s-${TONES[state] || "unknown"}` }, state || "unknown");
}

const TONES = {
  running: "run", starting: "run", restarting: "warn", stopping: "warn", launching: "warn", queued: "warn",
  succeeded: "good", failed: "bad", lost: "bad", stopped: "warn", created: "warn",
};

// A bar from 0 to 1; tone: warn or bad where the share is high.
export function meter(share, label, tone = "") {
  const width = share === null || share === undefined ? 0 : Math.max(0, Math.min(1, share)) * 100;
  return el(
    "svg",
    { class: `meter ${tone}`, viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
    el("rect", { class: "rest", width: 100, height: 6 }),
    el("rect", { class: "used", width: width.toFixed(1), height: 6 }),
  );
}

// The course of a figure, newest on the right, on a scale from low to high.
export function sparkline(values, label, low = null, high = null) {
  const shown = values.filter((value) => Number.isFinite(value));
  if (shown.length < 2) return null;
  const bottom = low ?? Math.min(...shown), top = high ?? Math.max(...shown);
  const across = 100 / (shown.length - 1), up = top > bottom ? 22 / (top - bottom) : 0;
  const points = shown.map((y, n) => `${(n * across).toFixed(1)} ${(23 - (y - bottom) * up).toFixed(1)}`);
  return el(
    "svg",
    { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    el("path", { d: `M${points.join("L")}` }),
  );
}

export function table(columns, rows, { caption, key } = {}) {
  if (!rows.length) return null;
  return el(
    "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table", {},
      el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, columns.map((one) => el("th", { scope: "col", class: one.class }, one.title)))),
      el(
        "tbody", {},
        rows.map((row) =>
          el(
            "tr", { "data-key": key ? key(row) : null, class: row.tone },
            columns.map((one) => cell(one, row)),
          ),
        ),
      ),
    ),
  );
}

function cell(column, row) {
  const node = el("td", { class: column.class, "data-title": column.title }, column.cell(row));
  if (["", "–"].includes(node.textContent) && !node.firstElementChild) node.classList.add("empty");
  return node;
}

export function fact(name, value, ...rest) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, ...rest));
}

// A part that can be folded; the key keeps its state while what is above it changes.
export function fold(key, title, open, ...children) {
  return el("details", { class: "fold", "data-key": key, open }, el("summary", {}, title), ...children);
}
