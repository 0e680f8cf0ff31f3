/**
 * What Apportion has not been told yet: a bounded list, kept in a folder over restarts.
 *
 * Every process writes a file named after itself; those of processes that are gone are taken over.
 * A degraded call is written down before it goes out, with what it may use at most, and again with
 * what it used. So if the process dies in between, the most is booked: it is never free.
 */
import { randomUUID } from "node:crypto";
import { closeSync, fsyncSync, ftruncateSync, mkdirSync, openSync, readFileSync, readdirSync, renameSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";

export type Entry = Record<string, any>;

export class Spool {
  #entries = new Map<string, Entry>(); #running = new Set<string>(); #file: number | undefined;
  readonly #name = `${process.pid}-${randomUUID()}.jsonl`;

  constructor(readonly folder: string | undefined, readonly most: number) {
    if (!folder) return;
    mkdirSync(folder, { recursive: true });
    this.#file = openSync(join(folder, this.#name), "a", 0o600); // it names users
  }

  get size(): number { return this.#entries.size; }

  /** Keeps what is to be told, or a degraded call that goes out. False: there is no room. */
  put(key: string, entry: Entry, running = false): boolean {
    if (!this.#entries.has(key) && this.#entries.size >= this.most) return false;
    this.#entries.set(key, entry);
    if (running) this.#running.add(key); else this.#running.delete(key);
    this.#write(key, entry);
    return true;
  }

  /** A degraded call ended: with what it used, or nobody knows and the most is booked. */
  end(key: string, used: Entry | undefined, atLeast: number): void {
    const most = this.#entries.get(key)!.tell.at(-1);
    most.output_tokens = Math.max(most.output_tokens, atLeast);
    const { input_tokens, output_tokens, outcome, ...kept } = most;
    this.put(key, { tell: used ? [{ ...kept, ...used }, most] : [most] });
  }

  done(key: string): void {
    this.#running.delete(key);
    if (!this.#entries.delete(key)) return;
    this.#write(key, null);
    if (!this.#entries.size && this.#file !== undefined) ftruncateSync(this.#file);
  }

  /** What can be told: all but calls that run. */
  pending(): [string, Entry][] {
    this.#adopt();
    return [...this.#entries].filter(([key]) => !this.#running.has(key));
  }

  #adopt(): void {
    for (const name of this.folder ? readdirSync(this.folder) : []) {
      const match = /^(\d+)-.*\.jsonl$/.exec(name);
      if (!match || isAlive(Number(match[1]))) continue;
      // Whoever renames it first has it; if that one dies too, its name says so.
      const ours = `${process.pid}-${randomUUID()}.jsonl`;
      try { renameSync(join(this.folder!, name), join(this.folder!, ours)); } catch { continue; }
      const left = new Map<string, Entry | null>();
      // What has no end of line is of one who was killed in the middle of it.
      for (const line of readFileSync(join(this.folder!, ours), "utf8").split("\n").slice(0, -1)) {
        const [key, entry] = JSON.parse(line);
        left.set(key, entry);
      }
      for (const [key, entry] of left) if (entry) { this.#entries.set(key, entry); this.#write(key, entry); }
      rmSync(join(this.folder!, ours));
    }
  }

  #write(key: string, entry: Entry | null): void {
    if (this.#file === undefined) return;
    writeSync(this.#file, JSON.stringify([key, entry]) + "\n");
    fsyncSync(this.#file);
  }

  close(): void { if (this.#file !== undefined) closeSync(this.#file); }
}

function isAlive(pid: number): boolean {
  try { process.kill(pid, 0); return true; } catch (error) { return (error as NodeJS.ErrnoException).code === "EPERM"; }
}
