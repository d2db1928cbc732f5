// Stop and restart: the first click asks the server for its question, the second one sends the question's key back.

import { post } from "./api.js";
import { clock, el, patch } from "./dom.js";

const WORDS = { stop: "Stop the run", restart: "Restart the run" };
const KEPT_S = 600;

export async function click(verb, run) {
  try {
    const path = `/api/runs/${encodeURIComponent(run)}/${verb}`;
    const asked = await post(path);
    ask(asked.question, asked.line, WORDS[verb], () => post(path, { confirm: asked.confirm }));
  } catch (error) {
    say("That is not possible", error.message);
  }
}

export async function examine() {
  try {
    await post("/api/findings");
  } catch (error) {
    say("That is not possible", error.message);
  }
}

function ask(question, line, word, proceed) {
  const dialog = document.getElementById("dialog");
  const no = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const yes = el("button", {
    type: "button", class: "danger",
    onclick: async () => {
      dialog.close();
      try {
        await proceed();
      } catch (error) {
        say("That is not possible", error.message);
      }
    },
  }, word);
  dialog.replaceChildren(
    el("h2", { id: "dialog-title" }, question),
    el("p", { class: "soft" }, "The same as ", el("code", {}, line)),
    el("p", { class: "buttons" }, no, yes),
  );
  dialog.showModal();
  no.focus();
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
