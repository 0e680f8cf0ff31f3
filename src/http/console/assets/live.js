// Parts of a page that are asked for again: `data-live` is where a part stands, `data-every` after
// how many seconds it is asked for again; without it, it is filled once.

const away = document.getElementById("away");
const RETRY_SECONDS = 5;
let fresh = new Date();
/** What stands in an element, as it came. */
const shown = new WeakMap();

/** Says what stands between the page and the server; nothing when all is well. */
export function say(text, link) {
  if (!away) return;
  if (!text) {
    away.hidden = true;
    away.replaceChildren();
    return;
  }
  if (away.dataset.text === text && !away.hidden) return;
  away.dataset.text = text;
  away.replaceChildren(text);
  if (link) {
    const anchor = document.createElement("a");
    anchor.href = link;
    anchor.textContent = "Sign in again";
    away.append(" ", anchor);
  }
  away.hidden = false;
}

function signInPath() {
  return "/console/sign-in?next=" + encodeURIComponent(location.pathname + location.search);
}

/** Shows `html` in `element`, and leaves what the reader has opened or stands in. */
function fill(element, html) {
  if (shown.get(element) === html) return;
  if (shown.has(element) && element.contains(document.activeElement)) return;
  const open = new Set([...element.querySelectorAll("details[open][id]")].map((details) => details.id));
  const parts = new DOMParser().parseFromString(html, "text/html");
  element.replaceChildren(...parts.body.childNodes);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  shown.set(element, html);
  keepLive(element);
}

async function ask(element) {
  const reply = await fetch(element.dataset.live, {
    headers: { accept: "text/html" },
    credentials: "same-origin",
    signal: AbortSignal.timeout(60_000),
  });
  if (reply.status === 401) {
    say("You are signed out, so these figures stand still.", signInPath());
    return "over";
  }
  if (reply.status >= 500) throw new Error(String(reply.status));
  fill(element, await reply.text());
  return "fresh";
}

/** Asks, and again after a while, as long as somebody looks. */
async function keep(element) {
  const every = Number(element.dataset.every ?? 0);
  for (;;) {
    await seen();
    if (!element.isConnected) return;
    let wait = every;
    try {
      if ((await ask(element)) === "over") return;
      element.classList.remove("old", "filling");
      fresh = new Date();
      say("");
      if (!every) return;
    } catch {
      element.classList.add("old");
      const since = fresh.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
      say(`The server does not answer. These figures are of ${since}; it is asked again and again.`);
      wait = RETRY_SECONDS;
    }
    await new Promise((done) => setTimeout(done, wait * 1000));
  }
}

/** Comes back when the page is seen. */
function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
  });
}

export function keepLive(root) {
  for (const element of root.querySelectorAll("[data-live]")) {
    if (element.dataset.kept) continue;
    element.dataset.kept = "yes";
    // What came with the page is fresh enough for a start.
    const isThere = element.childElementCount && !element.querySelector(":scope > .filling");
    setTimeout(() => keep(element), isThere ? Number(element.dataset.every ?? 0) * 1000 : 0);
  }
}
