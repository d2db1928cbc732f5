// Requests to the server, and its stream of snapshots with what is known of the connection.

export class Refused extends Error {}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined) query.append(name, one);
  }
  return answer(await fetch(`${path}?${query}`, { headers: { accept: "application/json" } }));
}

export async function post(path) {
  return answer(await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" }));
}

async function answer(response) {
  const isData = (response.headers.get("content-type") || "").startsWith("application/json");
  const data = isData ? await response.json() : { error: (await response.text()).trim() };
  if (!response.ok) throw new Refused([data.error, data.hint].filter(Boolean).join(" → ") || `error ${response.status}`);
  return data;
}

// Calls ask() now and again, never twice at a time: ms after its end, or as long as it returns. After now(), which asks
// at once, isCurrent() is false for an answer that comes late, and it is asked again. failed(error): there is no answer.
export function poll(ask, ms, failed) {
  let asking = false, due = 0, version = 0;
  async function tick() {
    if (asking || performance.now() < due) return;
    const asked = version, isCurrent = () => asked === version;
    asking = true;
    let wait = ms;
    try {
      wait = (await ask(isCurrent)) ?? ms;
    } catch (error) {
      if (isCurrent()) failed(error);
    } finally {
      asking = false;
    }
    if (isCurrent()) due = performance.now() + wait;
    else tick();
  }
  const timer = setInterval(tick, TICK_MS);
  const now = () => {
    version += 1;
    due = 0;
    tick();
  };
  setTimeout(tick);
  return { now, end: () => clearInterval(timer) };
}

const TICK_MS = 500;
const SILENT_MS = 8000;
const AGAIN_MS = 3000;

// Calls heard(snapshot) for each one, and lost(since) every second while nothing is heard; since is a Date, or null
// before the first snapshot. The clock of the page may jump: silence is measured by one that does not.
export function follow(heard, lost) {
  let source = null, last = performance.now(), since = null;
  const open = () => {
    source?.close();
    source = new EventSource("/api/live");
    source.addEventListener("snapshot", (event) => {
      let data;
      try {
        data = JSON.parse(event.data);
      } catch {
        return; // cut short
      }
      last = performance.now();
      since = new Date();
      heard(data);
    });
  };
  open();
  let opened = performance.now();
  setInterval(() => {
    const now = performance.now();
    const closed = source.readyState === EventSource.CLOSED; // it has been refused: the browser does not try again
    if (now - opened > AGAIN_MS && (closed || now - last > SILENT_MS)) {
      opened = now;
      open();
    }
    if (now - last > SILENT_MS || (source.readyState !== EventSource.OPEN && now - last > AGAIN_MS)) {
      lost(since, (now - last) / 1000);
    }
  }, 1000);
}
