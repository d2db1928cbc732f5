// Search runs in a web worker, which browsers refuse to pages that are opened from a folder (file://). There, a hidden
// frame of the same page runs the worker's script, and messages travel between the two.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><body></body>");
      inside.document.close();
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve());
      this.inside = inside;
      this.ready = load(inside, url);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  const load = (inside, url) =>
    new Promise((done, failed) => {
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = done;
      script.onerror = failed;
      inside.document.body.append(script);
    });
}
