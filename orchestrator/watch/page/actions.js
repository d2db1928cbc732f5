// Stop and restart, with a question before; and the check of the machines.

import { post } from "./api.js";
import { clock, el, patch } from "./dom.js";

const WORDS = {
  stop: ["Stop the run", (run) => `Stop run ${run} on all its nodes? A last checkpoint is written first.`],
  restart: ["Restart the run", (run) => `Stop run ${run} with a checkpoint and start it again from there?`],
};
const KEPT_S = 600;

// Ask before an action on a run; proceed only by a second click.
export function click(verb, run, user) {
  const [word, question] = WORDS[verb];
  const dialog = document.getElementById("dialog");
  const no = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const yes = el("button", {
    type: "button", class: "danger",
    onclick: () => {
      dialog.close();
      send(`/api/runs/${encodeURIComponent(run)}/${verb}`);
    },
  }, word);
  dialog.replaceChildren(
    el("h2", { id: "dialog-title" }, question(user ? `${run}, which ${user} launched,` : run)),
    el("p", { class: "soft" }, "The same as ", el("code", {}, `orch ${verb} ${run}`)),
    el("p", { class: "buttons" }, no, yes),
  );
  dialog.showModal();
  no.focus();
}

export const examine = () => send("/api/findings");

async function send(path) {
  try {
    await post(path);
  } catch (error) {
    say("That is not possible", error.message);
  }
}

export function say(title, ...texts) {
  const dialog = document.getElementById("dialog");
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(
    el("h2", { id: "dialog-title" }, title),
    ...texts.map((one) => (one instanceof Node ? one : el("p", {}, one))), el("p", { class: "buttons" }, close),
  );
  dialog.showModal();
  close.focus();
}

// The actions of the snapshot that are running or have just ended, with their lines.
export function showActions(actions, at) {
  const section = document.getElementById("actions");
  const shown = actions.filter((one) => one.code === null || at - one.began < KEPT_S).slice(-3);
  patch(section, shown.map((one) => {
    const title = one.verb === "doctor" ? "check of the machines" : `${one.verb} ${one.run_id}`;
    const state = one.code === null ? "running" : one.code === 0 ? "done" : `ended with exit code ${one.code}`;
    return el(
      "details", { "data-key": String(one.number), class: `card action ${one.code ? "bad" : ""}` },
      el("summary", {}, el("b", {}, title), ` · ${state} · ${clock(new Date(1000 * one.began), true)} · ${one.lines[one.lines.length - 1] || ""}`),
      el("pre", {}, one.lines.join("\n")),
    );
  }));
}
