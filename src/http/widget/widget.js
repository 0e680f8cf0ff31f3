// <apportion-quota>: what a user has left, on any page. How to use it: docs/quota-ui.md.
const TEXTS = {
  en: {
    title: "Your usage",
    plan: p => `${p} plan`,
    meters: {
      requests: "Requests", input_tokens: "Input tokens", output_tokens: "Output tokens",
      total_tokens: "Tokens", credits: "Credits",
    },
    day: m => `${m} today`,
    week: m => `${m} this week`,
    month: m => `${m} this month`,
    minute: m => `${m} per minute`,
    slots: "Calls at once",
    org: l => `${l} (team)`,
    left: n => `${n} left`,
    used: (n, of) => `${n} of ${of} used`,
    share: p => `${p} used`,
    held: n => `${n} held by running calls`,
    resets: t => `Resets ${t}`,
    pace: t => `At this pace used up ${t}`,
    more: n => `About ${n} more ${n === "1" ? "message" : "messages"} at your usual size`,
    running: n => `${n} running now`,
    upcoming: (p, t) => `${p} from ${t}`,
    what: "What used it",
    others: "Other",
    gone: l => `${l}: used up`,
    goneAll: "Used up",
    back: t => `Back ${t}`,
    wait: "One moment",
    again: t => `Possible again ${t}`,
    ready: "Possible again",
    busy: "Very busy right now",
    calls: "Another call is still running",
    fast: "That was quick",
    long: "This message is too long",
    most: n => `${n} tokens at most`,
    paused: "Your access is paused",
    verify: "Please confirm your account first",
    not: "Not possible right now",
    offline: t => `Not connected. As of ${t}`,
    none: "Usage is not available right now",
  },
  ja: {
    title: "ご利用状況",
    plan: p => `${p} プラン`,
    meters: {
      requests: "リクエスト", input_tokens: "入力トークン", output_tokens: "出力トークン",
      total_tokens: "トークン", credits: "クレジット",
    },
    day: m => `今日の${m}`,
    week: m => `今週の${m}`,
    month: m => `今月の${m}`,
    minute: m => `1分あたりの${m}`,
    slots: "同時実行",
    org: l => `${l}（チーム）`,
    left: n => `残り ${n}`,
    used: (n, of) => `${of} 中 ${n} 使用`,
    share: p => `${p} 使用`,
    held: n => `実行中の確保分 ${n}`,
    resets: t => `${t} にリセット`,
    pace: t => `このペースでは ${t} に使い切ります`,
    more: n => `いつもの量であと約 ${n} 回`,
    running: n => `${n} 件実行中`,
    upcoming: (p, t) => `${t} から ${p}`,
    what: "内訳",
    others: "その他",
    gone: l => `${l}を使い切りました`,
    goneAll: "使い切りました",
    back: t => `${t} に回復します`,
    wait: "少しお待ちください",
    again: t => `${t}に再開できます`,
    ready: "再開できます",
    busy: "ただいま混み合っています",
    calls: "別の処理が実行中です",
    fast: "間隔が短すぎます",
    long: "メッセージが長すぎます",
    most: n => `最大 ${n} トークン`,
    paused: "ご利用が停止されています",
    verify: "先にアカウントの確認が必要です",
    not: "現在ご利用になれません",
    offline: t => `接続が切れています（${t} 時点）`,
    none: "利用状況を取得できません",
  },
};

// What a refusal's code says to its reader.
const REFUSALS = [
  [/quota_exhausted/, "gone"], [/too_large|capacity$/, "long"], [/^concurrency/, "calls"],
  [/^(upstream|queue|store|over)/, "busy"], [/rate_exceeded/, "fast"], [/suspended/, "paused"],
  [/unverified/, "verify"],
];

const STYLE = new CSSStyleSheet();
STYLE.replaceSync(`
:host { display: block; font: inherit; line-height: 1.45; --accent: var(--apportion-accent, #3f74e8);
  --muted: var(--apportion-muted, color-mix(in srgb, currentColor 80%, transparent)) }
:host([hidden]) { display: none }
:host([theme=light]) { color-scheme: light; color: #1c2230 }
:host([theme=dark]) { color-scheme: dark; color: #e8eaf0 }
* { box-sizing: border-box; margin: 0; padding: 0; min-width: 0 }
[part=box] { display: grid; gap: var(--apportion-gap, 1em); padding: var(--apportion-padding, 1.1em 1.25em);
  border: var(--apportion-border, 1px solid color-mix(in srgb, currentColor 16%, transparent));
  border-radius: var(--apportion-radius, .75em); background: var(--apportion-background, none);
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
[part=head], [part=line], [part=hint] { display: flex; flex-wrap: wrap; gap: 0 1em; align-items: baseline }
[part=head], [part=line] { justify-content: space-between }
[part=title], [part=figure] { font-weight: 600 }
[part=hint], [part=plan], [part=running], [part=status] { color: var(--muted); font-size: .875em }
p:empty, [part=limits]:empty { display: none }
[part=limits], [part=limit] { display: grid; gap: var(--apportion-gap, 1em) }
[part=limit] { gap: .3em }
[part=meter], [part=share] { display: flex; height: .5em; border-radius: 1em; overflow: hidden;
  background: var(--apportion-track, color-mix(in srgb, currentColor 13%, transparent)) }
[part=meter] i, [part=share] i { background: var(--accent); transition: width .4s }
[part=meter] [part=held] { background: repeating-linear-gradient(135deg,
  color-mix(in srgb, var(--accent) 70%, transparent) 0 .25em, color-mix(in srgb, var(--accent) 35%, transparent) 0 .5em) }
[data-level=high] { --accent: var(--apportion-warn, #c77700) }
[data-level=gone] { --accent: var(--apportion-danger, #d5393f) }
[part=notice] { padding: .6em .8em; border-radius: calc(var(--apportion-radius, .75em) * .7);
  border-inline-start: .25em solid var(--apportion-danger, #d5393f);
  background: color-mix(in srgb, var(--apportion-danger, #d5393f) 10%, transparent) }
b { display: block }
[part=notice][data-level=high] { border-color: var(--apportion-warn, #c77700);
  background: color-mix(in srgb, var(--apportion-warn, #c77700) 12%, transparent) }
summary { cursor: pointer; color: var(--muted); font-size: .875em }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 2px }
[part=use] ul { list-style: none; display: grid; gap: .45em; margin-top: .6em; font-size: .875em }
[part=share] { height: .3em }
[part=running]::before { content: ""; display: inline-block; width: .55em; height: .55em; margin-inline-end: .5em;
  border-radius: 50%; background: var(--accent); animation: pulse 1.6s infinite }
[part=live] { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap }
@keyframes pulse { 50% { opacity: .3 } }
@media (prefers-reduced-motion: reduce) { * { transition: none !important; animation: none !important } }
`);

const HOUR = 3600e3;
const sleep = (ms, signal) => new Promise(done => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
});
const make = (tag, part, ...children) => {
  const node = document.createElement(tag);
  if (part) node.setAttribute("part", part);
  node.append(...children);
  return node;
};
const put = (node, text = "") => node.textContent === text || (node.textContent = text);

class ApportionQuota extends HTMLElement {
  static observedAttributes = ["token", "src", "display", "by", "limits", "lang"];

  #nodes = {};
  #rows = new Map();
  #order = "";
  #live = null; // aborts what runs
  #token = "";
  #renewAt = 0;
  #ask = null;
  #quota = null;
  #use = null;
  #usedAt = 0; // when `#use` was asked for
  #asking = null; // the turn to ask for it
  #refusal = null;
  #lost = false;
  #seenAt = 0;
  #skew = 0; // of the viewer's clock to the one that decides
  #late = 0; // and to the one that tokens end by
  #levels = new Map();
  #timer = 0;
  #labels = {};

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [STYLE];
    const p = this.#nodes;
    const part = (tag, name, ...children) => (p[name] = make(tag, name, ...children));
    const action = make("slot");
    action.name = "action";
    part("div", "box",
      make("div", "head", part("slot", "title"), part("span", "plan")),
      part("p", "notice"), part("div", "limits"), part("p", "running"),
      part("details", "use", part("summary", "summary"), (p.list = make("ul"))),
      part("p", "status"), action);
    part("div", "live").setAttribute("role", "status");
    p.title.name = "title";
    root.append(p.box, p.live);
  }

  /** Gives a fresh token: `async () => "..."`. */
  set getToken(ask) { this.#ask = ask; this.#restart(); }
  /** A refusal to show, as the problem document came; `null` takes it away. */
  set refusal(problem) {
    this.#refusal = problem && { problem, until: this.#until(problem) };
    this.#draw();
    if (problem) put(this.#nodes.live, this.#nodes.notice.textContent);
  }
  /** Names of limits, features and models, in place of ours: `{tokens_per_month: "Words"}`. */
  set labels(labels) { this.#labels = labels ?? {}; this.#draw(); }
  /** The last answer of `GET /v1/me/quota`. */
  get quota() { return this.#quota; }

  connectedCallback() {
    for (const name of ["getToken", "refusal", "labels"]) {
      if (!Object.hasOwn(this, name)) continue;
      const value = this[name]; // set before this script was there
      delete this[name];
      this[name] = value;
    }
    document.addEventListener("visibilitychange", this.#wake);
    this.#draw();
    this.#wake();
  }
  disconnectedCallback() {
    document.removeEventListener("visibilitychange", this.#wake);
    this.#stop();
  }
  attributeChangedCallback(name, before, now) {
    if (before === now) return;
    if (name === "token" || name === "src") this.#restart();
    this.#draw();
    if (name === "by" || name === "limits") this.#askUse(this.#live?.signal, 0);
  }

  #wake = () => document.hidden ? this.#stop() : this.#start();
  #start() {
    const may = this.#ask || this.getAttribute("token");
    if (this.#live || !may || !this.isConnected || document.hidden) return;
    this.#live = new AbortController();
    this.#run(this.#live.signal);
  }
  #stop() {
    this.#live?.abort();
    this.#live = null;
    clearTimeout(this.#timer);
  }
  #restart() {
    this.#token = "";
    this.#stop();
    this.#start();
  }
  #now() { return Date.now() + this.#skew; }

  // Listens; where that does not go, asks now and then.
  async #run(signal) {
    let failures = 0;
    while (!signal.aborted) {
      let wait = 500;
      try {
        await this.#listen(signal);
        failures = 0;
      } catch {
        if (signal.aborted) return;
        if (await this.#poll(signal)) [failures, wait] = [0, 10e3];
        else wait = Math.min(500 * 2 ** failures++, 30e3);
      }
      await sleep(wait * (.75 + Math.random() / 2), signal);
    }
  }
  async #listen(signal) {
    const own = new AbortController();
    const end = () => own.abort();
    let timer = setTimeout(end, 8e3);
    try {
      const answer = await this.#fetch("v1/me/quota/stream", AbortSignal.any([signal, own.signal]));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer); // a sign of life comes every 15 s
        timer = setTimeout(end, 40e3);
        const events = (text += value).split("\n\n");
        text = events.pop();
        for (const event of events) {
          const data = /^data: ?(.*)/m.exec(event);
          if (data) this.#show(JSON.parse(data[1]), signal);
        }
        if (this.#ask && Date.now() > this.#renewAt) return;
      }
    } finally {
      clearTimeout(timer);
      end();
    }
  }
  async #poll(signal) {
    try {
      this.#show(await (await this.#fetch("v1/me/quota", signal)).json(), signal);
      return true;
    } catch {
      if (!signal.aborted) this.#lost = true;
      this.#draw();
    }
  }
  async #fetch(path, signal) {
    if (!this.#token || (this.#ask && Date.now() > this.#renewAt)) {
      this.#token = (await this.#ask?.()) ?? this.getAttribute("token");
      this.#renewAt = Infinity;
      try {
        const claims = this.#token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/");
        const life = JSON.parse(atob(claims)).exp * 1e3 - Date.now() - this.#late;
        this.#renewAt = Date.now() + life - Math.min(30e3, life / 3);
      } catch {
        // a token that we cannot read is good until it is refused
      }
    }
    const base = this.getAttribute("src");
    const answer = await fetch(new URL(path, base ? new URL(base.replace(/\/?$/, "/"), location) : import.meta.url), {
      signal, cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer",
      headers: { authorization: `Bearer ${this.#token}` },
    });
    this.#late = Date.parse(answer.headers.get("date")) - Date.now() || 0;
    if (answer.status === 401) {
      this.#token = "";
      this.dispatchEvent(new CustomEvent("tokenrefused", { bubbles: true, composed: true }));
    }
    if (!answer.ok) throw answer.status;
    return answer;
  }

  #show(quota, signal) {
    const before = this.#quota;
    this.#quota = quota;
    this.#lost = false;
    const skew = Date.parse(quota.as_of) - Date.now();
    this.#skew = Math.abs(skew) > 5e3 ? skew : 0;
    this.#seenAt = this.#now();
    this.#draw();
    this.#announce(before);
    this.#askUse(signal);
    this.dispatchEvent(new CustomEvent("quota", { detail: quota, bubbles: true, composed: true }));
  }
  // What used it changes with every call: asked for now and then.
  async #askUse(signal, wait = Math.max(100, this.#usedAt + 5e3 - Date.now())) {
    const by = this.#by;
    if (by === "none" || !signal || signal.aborted || (this.#asking && wait)) return;
    const turn = this.#asking = {};
    await sleep(wait, signal);
    if (this.#asking !== turn) return;
    this.#asking = null;
    if (signal.aborted) return;
    this.#usedAt = Date.now();
    const starts = this.#shown().map(row => row.window?.start).filter(Boolean).sort();
    const query = new URLSearchParams({ by, ...(starts[0] && { from: starts[0] }) });
    try {
      const use = await (await this.#fetch(`v1/me/usage?${query}`, signal)).json();
      if (by !== this.#by) return;
      this.#use = use;
      this.#draw();
    } catch {
      // the limits are there all the same
    }
  }

  get #by() { return this.getAttribute("by") ?? "feature"; }
  get #lang() { return this.closest("[lang]")?.lang || navigator.language; }
  get #text() { return TEXTS[this.#lang.slice(0, 2)] ?? TEXTS.en; }
  #number(n, meter, floor) {
    const value = meter === "credits" ? n / 1e6 : n;
    const big = value >= 1e6 && { notation: "compact", maximumSignificantDigits: 3 };
    return new Intl.NumberFormat(this.#lang, {
      maximumFractionDigits: meter === "credits" ? 2 : 0, ...big, roundingMode: floor ? "floor" : "halfExpand",
    }).format(value);
  }
  #percent(part) {
    return new Intl.NumberFormat(this.#lang, { style: "percent", roundingMode: "floor" }).format(part + 1e-9);
  }
  // "in 12 seconds", "14:05", "Tue 1 Dec, 09:00": in the viewer's own zone.
  #time(at) {
    const then = new Date(at);
    const ms = then - this.#now();
    if (ms > 0 && ms < HOUR) {
      const format = new Intl.RelativeTimeFormat(this.#lang);
      const seconds = Math.ceil(ms / 1e3);
      return format.format(...(seconds < 100 ? [seconds, "second"] : [Math.ceil(seconds / 60), "minute"]));
    }
    const clock = { hour: "numeric", minute: "2-digit" };
    const day = { month: "short", day: "numeric", ...(ms < 150 * HOUR && { weekday: "short" }) };
    const today = new Date(this.#now()).toDateString() === then.toDateString();
    return new Intl.DateTimeFormat(this.#lang, today ? clock : { ...day, ...clock }).format(then);
  }
  #name(word) { return this.#labels[word] ?? word.replaceAll("_", " "); }
  #plan(plan) { return plan ? this.#labels[plan.id] ?? this.#text.plan(plan.id) : ""; }
  #label(row) {
    if (this.#labels[row.name]) return this.#labels[row.name];
    const t = this.#text;
    const meter = t.meters[row.meter] ?? this.#name(row.meter ?? "");
    const days = row.window ? (new Date(row.window.end) - new Date(row.window.start)) / HOUR / 24 : 0;
    const period = days > 27 && days < 60 ? t.month : days > 6 && days < 9 ? t.week : days > .9 && days < 2 ? t.day : m => m;
    const label = row.kind === "slots" ? t.slots : row.kind === "bucket" ? t.minute(meter) : period(meter);
    return row.scope === "org" ? t.org(label) : label;
  }
  #until({ retry_after_ms: ms, resets_at: at }) {
    const until = ms ? this.#now() + +ms : Date.parse(at);
    return until < 8e15 ? until : 0; // no time is later
  }
  // Buckets and slots matter while they make somebody wait.
  #shown() {
    const wanted = this.getAttribute("limits")?.split(/[\s,]+/);
    const rows = this.#quota?.limits ?? [];
    return wanted
      ? wanted.map(name => rows.find(row => row.name === name)).filter(Boolean)
      : rows.filter(row => row.would_refuse == null && (row.kind === "window" || row.state !== "ok"));
  }
  // Parts of the whole, 0 to 1.
  #parts(row) {
    if (row.visibility === "percent") {
      const [left, held] = [row.remaining_percent / 100, row.held_percent / 100];
      return { left, held, used: 1 - left - held };
    }
    const whole = row.limit + (row.granted ?? 0) || 1;
    const left = Math.min(row.remaining / whole, 1);
    const held = Math.min((row.held ?? 0) / whole, 1 - left);
    return { left, held, used: row.limit ? 1 - left - held : 1 };
  }
  #figure(row) {
    const t = this.#text;
    const { left } = this.#parts(row);
    const display = this.getAttribute("display");
    if (display === "percent" || row.visibility === "percent") {
      return display === "used" ? t.share(this.#percent(1 - left)) : t.left(this.#percent(left));
    }
    const whole = row.limit + (row.granted ?? 0);
    return display === "used"
      ? t.used(this.#number(whole - row.remaining + (row.over_by ?? 0), row.meter), this.#number(whole, row.meter))
      : t.left(this.#number(row.remaining, row.meter, true));
  }
  #hint(row, more) {
    const t = this.#text;
    return [
      more && t.more(this.#number(more)),
      row.held > 0 && t.held(this.#number(row.held, row.meter)),
      row.resets_at && t.resets(this.#time(row.resets_at)),
      row.state === "ok" && row.forecast_exhausted_at && t.pace(this.#time(row.forecast_exhausted_at)),
    ].filter(Boolean);
  }
  // How many calls of the usual size the scarcest window has room for.
  #more(rows) {
    const usual = this.#use?.usual;
    const counts = rows.filter(row => usual?.[row.meter] && row.kind === "window" && row.remaining != null)
      .map(row => [Math.floor(row.remaining / usual[row.meter]), row]);
    return counts.sort((a, b) => a[0] - b[0])[0] ?? [];
  }

  #draw() {
    const p = this.#nodes;
    const t = this.#text;
    const quota = this.#quota;
    clearTimeout(this.#timer);
    put(p.title, t.title);
    put(p.plan, this.#plan(quota?.plan));
    const rows = this.#shown();
    const [more, scarcest] = this.#more(rows);
    const nodes = rows.map(row => this.#row(row, row === scarcest && more));
    if (`${rows.map(row => row.name)}` !== this.#order) p.limits.replaceChildren(...nodes);
    this.#order = `${rows.map(row => row.name)}`;
    this.#notice();
    const slots = quota?.limits.find(row => row.kind === "slots");
    const calls = this.#use?.running ?? [];
    const running = slots?.in_use ?? calls.length;
    const names = calls.slice(0, 3).map(call => [call.feature, call.model].filter(Boolean).map(n => this.#name(n)).join(", "));
    put(p.running, running ? [t.running(this.#number(running)), ...new Set(names)].filter(Boolean).join(" · ") : "");
    const { upcoming } = quota ?? {};
    put(p.status, this.#lost ? (quota ? t.offline(this.#time(this.#seenAt)) : t.none)
      : upcoming ? t.upcoming(this.#plan(upcoming.plan), this.#time(upcoming.effective_at)) : "");
    this.#drawUse();
    const state = this.#lost ? "offline" : quota?.state ?? (this.#live ? "loading" : "idle");
    this.setAttribute("state", state);
  }
  #row(row, more) {
    let node = this.#rows.get(row.name);
    if (!node) {
      node = make("div", "limit",
        make("div", "line", make("span", "label"), make("span", "figure")),
        make("div", "meter", make("i", "used"), make("i", "held")), make("p", "hint"));
      node.children[1].setAttribute("role", "meter");
      this.#rows.set(row.name, node);
    }
    const [line, meter, hint] = node.children;
    const { left, held, used } = this.#parts(row);
    const label = this.#label(row);
    const figure = this.#figure(row);
    put(line.children[0], label);
    put(line.children[1], figure);
    const hints = this.#hint(row, more).map(text => make("span", "", text));
    if (hint.textContent !== hints.map(span => span.textContent).join("")) hint.replaceChildren(...hints);
    node.dataset.level = row.state === "exhausted" ? "gone" : left <= .2 ? "high" : "";
    meter.children[0].style.width = `${used * 100}%`;
    meter.children[1].style.width = `${held * 100}%`;
    // From 0 to 100, as meters are.
    for (const [name, value] of [["label", label], ["valuenow", Math.round(100 - left * 100)], ["valuetext", figure]]) {
      meter.setAttribute(`aria-${name}`, value);
    }
    return node;
  }
  // A refusal, or why the next call has to wait.
  #notice() {
    const t = this.#text;
    const quota = this.#quota;
    let [head, tail, until, soft] = ["", "", 0, false];
    const refusal = this.#refusal;
    if (refusal?.until && refusal.until <= this.#now()) this.#refusal = null;
    if (this.#refusal) {
      const { code = "", limit, max, retryable } = refusal.problem;
      const word = REFUSALS.find(([pattern]) => pattern.test(code))?.[1] ?? "not";
      const row = quota?.limits.find(row => row.name === limit);
      head = word === "gone" ? (row ? t.gone(this.#label(row)) : t.goneAll) : t[word];
      tail = word === "long" && max ? t.most(this.#number(max)) : "";
      [until, soft] = [refusal.until, retryable];
    } else if (quota && quota.state !== "ok") {
      const row = quota.limits.find(row => row.state === quota.state);
      soft = quota.state === "waiting";
      head = soft ? t.wait : row ? t.gone(this.#label(row)) : t.goneAll;
      until = quota.next_call_at ? Date.parse(quota.next_call_at) : 0;
    }
    if (until > this.#now()) tail = (soft ? t.again : t.back)(this.#time(until));
    const { notice } = this.#nodes;
    notice.dataset.level = soft ? "high" : "gone";
    if (!head) return notice.replaceChildren();
    const text = tail ? ` ${tail}` : "";
    if (notice.textContent !== head + text) notice.replaceChildren(make("b", "", head), text);
    this.#tick(until);
  }
  // Counts down, and looks again when it is time: refill alone is told by nobody.
  #tick(until) {
    const ms = until - this.#now();
    if (!until || ms > 24 * HOUR || !this.isConnected) return;
    this.#timer = setTimeout(() => {
      const signal = this.#live?.signal;
      if (ms < 1e3 && signal && this.#quota?.state !== "ok") this.#poll(signal);
      else this.#draw();
    }, ms < 1e3 ? Math.max(ms, 0) + 300 : ms < 100e3 ? 1e3 : 20e3);
  }
  #drawUse() {
    const { use, summary, list } = this.#nodes;
    const { data = [], by } = this.#use ?? {};
    use.hidden = !data.length || this.#by === "none";
    put(summary, this.#text.what);
    const rows = data.slice(0, 8);
    // Whole percents that come to what their sum does: the largest remainders are rounded up.
    const rest = row => row.share * 100 % 1;
    const up = [...rows].sort((a, b) => rest(b) - rest(a))
      .slice(0, Math.round(rows.reduce((sum, row) => sum + rest(row), 0)));
    list.replaceChildren(...rows.map(row => {
      const bar = make("i");
      bar.style.width = `${row.share * 100}%`;
      const name = row[by] ? this.#name(row[by]) : this.#text.others;
      const amount = row.total_tokens ? this.#number(row.total_tokens) : this.#percent(Math.floor(row.share * 100 + up.includes(row)) / 100);
      return make("li", "", make("div", "line", make("span", "", name), make("span", "", amount)), make("div", "share", bar));
    }));
  }
  // Said aloud: what has changed for the reader, never a tick.
  #announce(before) {
    const said = [];
    for (const row of this.#shown()) {
      const { left } = this.#parts(row);
      const level = left === 0 ? 3 : left <= .05 ? 2 : left <= .2 ? 1 : 0;
      if (level > (this.#levels.get(row.name) ?? level)) said.push(`${this.#label(row)}: ${this.#figure(row)}`);
      this.#levels.set(row.name, level);
    }
    if (before && before.state !== this.#quota.state) {
      said.push(this.#quota.state === "ok" ? this.#text.ready : this.#nodes.notice.textContent);
    }
    if (said.length) put(this.#nodes.live, said.join(". "));
  }
}

customElements.get("apportion-quota") ?? customElements.define("apportion-quota", ApportionQuota);
