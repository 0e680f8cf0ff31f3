// Forms that are sent while the server is away would end on the browser's own page, and what was
// written with them: so it is asked first whether it is there. And a form is sent once.

import { say } from "./live.js";

const asked = new WeakSet();

async function isThere() {
  try {
    const options = { method: "HEAD", cache: "no-store", signal: AbortSignal.timeout(10_000) };
    return (await fetch("/console/assets/mark.svg", options)).status < 500;
  } catch {
    return false;
  }
}

export function watchForms() {
  addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.method !== "post" || asked.has(form)) return;
    event.preventDefault();
    if (form.dataset.asks) return;
    form.dataset.asks = "yes";
    const there = await isThere();
    delete form.dataset.asks;
    if (!there) {
      say("The server does not answer, so nothing was sent. What you wrote is still here: send it again later.");
      document.getElementById("away")?.scrollIntoView({ block: "nearest" });
      return;
    }
    say("");
    asked.add(form);
    form.requestSubmit(event.submitter);
    // Whoever comes back to this page may send it again.
    addEventListener("pageshow", () => asked.delete(form), { once: true });
  });
}
