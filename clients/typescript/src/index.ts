/**
 * Per-user plans in front of every model call. No dependencies.
 *
 *     const quota = new Apportion(URL, TOKEN);
 *     const client = quota.openai(new OpenAI(), "u_42", { feature: "chat" });
 *     for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) ...
 *
 * A call is checked before it goes out, its lease is extended while it streams, and it is settled
 * with the vendor's own usage however it ends. What is refused throws a `Refused`.
 */
import { randomUUID } from "node:crypto";
import { Spool, type Entry } from "./spool.js";
import { anthropic, openai, type AnthropicClient, type OpenAIClient } from "./vendors.js";

/** Fields of a check besides the user; `plan` is only asked while Apportion cannot be reached. */
export interface Check {
  request_id?: string; model?: string; feature?: string; priority?: "interactive" | "bulk"; plan?: string;
  input_tokens?: number; max_output_tokens?: number; min_output_tokens?: number; lease_seconds?: number;
}
export interface Options {
  /** Calls a minute of a user while Apportion cannot be reached, by plan; `*` for any other. Needs `spool`. */
  outage?: Record<string, number>;
  /** Output of such a call without a cap, where none was seen of its plan; else it is the last that was. */
  outageOutput?: number;
  /** A folder of this machine: what is used meanwhile is kept there, over restarts, and booked later. */
  spool?: string; spoolMax?: number;
  /** How long one question may take, how often it is put, and how long a check that is refused for now waits. */
  timeoutMs?: number; tries?: number; maxWaitMs?: number;
  leaseSeconds?: number; clock?: () => number; sleep?: (ms: number) => Promise<void>;
  /** Told what Apportion will not take: a fault of the caller's. */
  onError?: (error: Error) => void;
}
export type Problem = Record<string, any>;

/** Apportion says no. `code` names why; `problem` is the whole answer. */
export class Refused extends Error {
  readonly code: string; readonly retryable: boolean;
  constructor(readonly status: number, readonly problem: Problem) {
    super(`${problem.code ?? "no_answer"}: ${problem.detail ?? status}`);
    this.name = new.target.name;
    this.code = problem.code ?? "no_answer";
    this.retryable = problem.retryable ?? status >= 500;
  }
  get limit(): string | undefined { return this.problem.limit; }
  get max(): number | undefined { return this.problem.max; }
  get retryAfterMs(): number | undefined { return this.problem.retry_after_ms; }
  get resetsAt(): string | null | undefined { return this.problem.resets_at; }
}
/** An allowance is used up until `resetsAt`; waiting a little does not help. */
export class QuotaExhausted extends Refused {}
/** Too much at once: the same call passes after `retryAfterMs`. */
export class RateLimited extends Refused {}
/** No waiting helps: at most `max` could pass. */
export class TooLarge extends Refused {}
/** Apportion could not be asked, and the plan's policy lets nothing (more) through. */
export class Unreachable extends Refused {
  constructor(why: string) { super(503, { code: "unreachable", retryable: true, detail: why }); }
}

function refused(status: number, problem: Problem): Refused {
  if (String(problem.code).endsWith("quota_exhausted")) return new QuotaExhausted(status, problem);
  if (status === 413) return new TooLarge(status, problem);
  return status === 429 ? new RateLimited(status, problem) : new Refused(status, problem);
}

/** One for a process. */
export class Apportion {
  readonly clock: () => number; readonly leaseSeconds: number; readonly spool: Spool;
  #options: Required<Omit<Options, "spool">>;
  #plans = new Map<string, string>();
  #caps = new Map<string, number>();
  #degraded = new Map<string, number[]>();
  #downUntil = 0;
  #flushing: Promise<number> | undefined;

  constructor(readonly url: string, readonly token: string, options: Options = {}) {
    if (options.outage && !options.spool) throw new Error("`outage` needs `spool`: what is used must survive a restart");
    const sleep = (ms: number) => new Promise<void>((done) => setTimeout(done, ms));
    this.#options = { outage: {}, outageOutput: 4096, spoolMax: 10_000, timeoutMs: 2000, tries: 3, maxWaitMs: 0, leaseSeconds: 120,
      clock: Date.now, sleep, onError: console.error, ...options };
    this.clock = this.#options.clock;
    this.leaseSeconds = this.#options.leaseSeconds;
    this.spool = new Spool(options.spool, this.#options.spoolMax);
  }

  /** `chat.completions.create` and `responses.create` of an official client, for one user. */
  openai(client: OpenAIClient, user: string, check: Check = {}) { return openai(this, client, user, check); }
  /** `messages.create` of an official client, for one user. */
  anthropic(client: AnthropicClient, user: string, check: Check = {}) { return anthropic(this, client, user, check); }

  /** Any vendor: `make` is given the call, says what was `used`, and whatever happens the call is ended. */
  async run<T>(user: string, check: Check, make: (call: Call) => Promise<T>): Promise<T> {
    const call = await Call.begin(this, user, check);
    try {
      const answer = await make(call);
      await call.end();
      return answer;
    } catch (error) {
      await call.end(error);
      throw error;
    }
  }

  /** Tells Apportion what it could not be told before; answers how much is left. */
  flush(): Promise<number> {
    this.#flushing ??= this.#flush().finally(() => { this.#flushing = undefined; });
    return this.#flushing;
  }

  async #flush(): Promise<number> {
    for (const [key, entry] of this.spool.pending()) {
      if (!(await this.#deliver(entry))) break;
      this.spool.done(key);
    }
    return this.spool.size;
  }

  /** The answer, or `Refused`. Every question of ours may be put twice: it counts once. */
  async ask(method: string, path: string, body?: unknown, tries = this.#options.tries, maxWaitMs = 0): Promise<Problem> {
    for (let left = tries - 1; ; left--) {
      try {
        return await this.#send(method, path, body);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        const wait = error.retryAfterMs ?? 100;
        if (error.status < 500 && error.retryable && wait <= maxWaitMs) { maxWaitMs -= wait; left++; }
        else if (error.status < 500 || left <= 0) throw error;
        await this.#options.sleep(wait);
      }
    }
  }

  /** Refusals are asked for as problems. */
  async #send(method: string, path: string, body: unknown): Promise<Problem> {
    const url = `${this.url}${path}${path.includes("?") ? "&" : "?"}shape=none`;
    const headers = { Authorization: `Bearer ${this.token}`, "Content-Type": "application/json" };
    const signal = AbortSignal.timeout(this.#options.timeoutMs);
    let status: number, text: string;
    try {
      const reply = await fetch(url, { method, headers, signal, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
      [status, text] = [reply.status, await reply.text()];
    } catch (error) {
      throw new Unreachable(String(error));
    }
    let answer: Problem | undefined;
    try { answer = JSON.parse(text); } catch { /* not Apportion: a proxy's own page */ }
    if (status < 300 && answer) return answer;
    throw refused(status, answer ?? {});
  }

  /** The answer to a check, or `undefined`: admitted by the plan's policy, to be booked later. */
  async check(body: Entry, named: string | undefined): Promise<Problem | undefined> {
    let cause: Refused = new Unreachable("did not answer a moment ago");
    if (this.clock() >= this.#downUntil) {
      try {
        const answer = await this.ask("POST", "/v1/check", body, undefined, this.#options.maxWaitMs);
        remember(this.#plans, body.user, answer.plan.id);
        if (body.max_output_tokens === undefined)
          this.#caps.set(answer.plan.id, answer.granted.max_output_tokens || this.#options.outageOutput);
        if (this.spool.size) void this.flush();
        return answer;
      } catch (error) {
        if (!(error instanceof Refused) || (error.status < 500 && error.code !== "no_answer")) throw error;
        [cause, this.#downUntil] = [error, this.clock() + 1000]; // others need not wait for the same
      }
    }
    const plan = named ?? this.#plans.get(body.user);
    const share = this.#options.outage[plan ?? "*"] ?? this.#options.outage["*"] ?? 0;
    if (typeof body.max_output_tokens !== "number") // no cap, or one that Apportion would have chosen
      body.max_output_tokens = this.#caps.get(plan ?? "") ?? this.#options.outageOutput;
    const recent = (this.#degraded.get(body.user) ?? []).filter((at) => at > this.clock() - 60_000);
    if (recent.length >= share || !this.spool.put(body.request_id, { tell: [this.#reserve(body)] }, true)) throw cause;
    remember(this.#degraded, body.user, [...recent, this.clock()]);
    return undefined;
  }

  /** What is booked when nobody learns what a degraded call used: as much as it could. */
  #reserve({ user, model, feature, input_tokens, max_output_tokens, request_id }: Entry): Entry {
    const at = new Date(this.clock()).toISOString();
    return { id: request_id, user, model, feature, at, outcome: "unknown", input_tokens, output_tokens: max_output_tokens };
  }

  /** Ends a hold, now or later: what does not get through is kept. */
  async finish(path: string, ...tell: Entry[]): Promise<void> {
    // Without room it falls in doubt, which loses nothing.
    if (!(await this.#deliver({ path, tell }))) this.spool.put(path, { path, tell });
  }

  /** Tells what is known, or the next best where that is not taken. False: to be told later. */
  async #deliver({ path, tell }: Entry): Promise<boolean> {
    for (const body of tell) {
      try {
        await (path ? this.ask("POST", path, body) : this.#book(body));
        return true;
      } catch (error) {
        if (error instanceof Refused && error.retryable) return false;
        this.#options.onError(error as Error);
        if (!(error instanceof Refused && [400, 422].includes(error.status))) return true; // it is not about the usage
      }
    }
    return true;
  }

  async #book(entry: Entry): Promise<unknown> {
    const { id, user, feature, at, ...used } = entry;
    const is = (status: number) => (error: unknown) => { if (!(error instanceof Refused && error.status === status)) throw error; return error; };
    // The check may have been heard though its answer was not: then there is a hold to settle.
    const found = await this.ask("GET", `/v1/holds?${new URLSearchParams({ user, request_id: id })}`).catch(is(404));
    if (!(found instanceof Refused)) return this.ask("POST", `/v1/holds/${(found as Problem).hold.id}/settle`, used);
    const booked = await this.ask("POST", "/v1/usage", entry).catch(is(400));
    if (!(booked instanceof Refused)) return booked;
    // A clock that is ahead of Apportion's books at Apportion's now.
    if (booked.problem.errors?.some((fault: Problem) => fault.pointer !== "/at")) throw booked;
    return this.ask("POST", "/v1/usage", { ...entry, at: undefined });
  }
}

const REMEMBERED = 10_000;
function remember<T>(table: Map<string, T>, user: string, value: T) {
  table.delete(user);
  table.set(user, value); // the last of them
  if (table.size > REMEMBERED) for (const first of table.keys()) { table.delete(first); break; }
}

/** One call to a vendor, from check to settle. */
export class Call {
  #end: Entry | undefined; #progress = 0; #renewed: number; #over = false;
  /** Names of the errors by which nothing went out. */
  unsent: string[] = [];
  private constructor(readonly quota: Apportion, private readonly body: Entry, private readonly hold: string | undefined,
    /** What may be asked of the vendor; 0: no limit is known. */ readonly granted: number) { this.#renewed = quota.clock(); }
  /** Apportion was not asked. */
  get degraded(): boolean { return this.hold === undefined; }

  static async begin(quota: Apportion, user: string, { plan, ...check }: Check): Promise<Call> {
    const body: Entry = { user, request_id: randomUUID(), input_tokens: 0, lease_seconds: quota.leaseSeconds, ...check };
    const answer = await quota.check(body, plan);
    return new Call(quota, body, answer?.hold.id, (answer ? answer.granted : body).max_output_tokens);
  }

  /** The vendor's own usage object, as it came. */
  used(usage_format: "openai" | "anthropic" | "gemini", usage: object | null | undefined, model = this.body.model) {
    if (usage) this.#end = { usage_format, usage, model };
  }

  /** Call it while a stream runs: the lease is renewed when half of it is over. */
  async progress(outputTokens: number): Promise<void> {
    this.#progress = Math.max(this.#progress, Math.floor(outputTokens));
    if (!this.hold || this.quota.clock() < this.#renewed + this.body.lease_seconds * 500) return;
    this.#renewed = this.quota.clock();
    // If it is not heard, the call goes on and its hold is settled late.
    await this.quota.ask("POST", `/v1/holds/${this.hold}/extend`, { output_tokens_so_far: this.#progress }, 1).catch(() => undefined);
  }

  /** Ends the call, once. An error says how it failed. */
  async end(error?: unknown): Promise<void> {
    if (this.#over) return;
    this.#over = true;
    const failed = error !== undefined && !this.#progress && !this.#end;
    const unsent = this.unsent.includes((error as Error)?.constructor?.name);
    const reason = failed ? (unsent ? "not_sent" : noWork(error)) : undefined;
    if (this.hold) {
      const path = `/v1/holds/${this.hold}/`;
      if (reason) return this.quota.finish(`${path}release`, { reason });
      return this.quota.finish(`${path}settle`, ...(this.#end ? [this.#end] : []), { usage: "unknown" });
    }
    if (reason) this.quota.spool.done(this.body.request_id);
    else this.quota.spool.end(this.body.request_id, this.#end, this.#progress);
  }
}

/** Why the vendor cannot have done any work, if that is sure: the reason of a release. */
function noWork(error: any): string | undefined {
  if (typeof error?.status === "number") {
    const { status } = error;
    const toldToWait = status === 503 && error.headers?.get?.("retry-after");
    return (status >= 400 && status < 500 && status !== 408) || status === 529 || toldToWait ? "upstream_refused" : undefined;
  }
  for (let cause = error; cause; cause = cause.cause)
    if (["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"].includes(cause.code)) return "not_sent";
  return undefined;
}
