// The file of `orch report`: the sections of the page, from data in the file itself.

import { CurveWall, figuresOf } from "./curves.js";
import { el, fold } from "./dom.js";
import { RunSections, comparison } from "./sections.js";

const { runs, compared, made } = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");

function draw(root, run, several) {
  const sections = new RunSections(root, { curves: !several });
  sections.draw(run);
  sections.explain(run.why);
  sections.scroll();
}

if (runs.length === 1) draw(main, runs[0], false);
else {
  const charts = el("section", { class: "charts", "aria-label": "Curves" });
  main.append(el("h1", {}, `${runs.length} runs side by side`), comparison(runs, compared), charts);
  new CurveWall(charts).give(runs, figuresOf(runs));
  for (const run of runs) {
    const part = el("div");
    main.append(fold(run.run_id, run.run_id, false, part));
    draw(part, run, true);
  }
}
main.append(el("p", { class: "soft made" }, made));
