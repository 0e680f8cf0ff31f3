// A product in Node: does what each line of standard input says, answers with a line of JSON.
// usage: node typescript.mjs MODULES LIBRARY APPORTION TOKEN VENDOR [SPOOL]
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { once } from "node:events";

const [modules, library, url, token, vendor, spool] = process.argv.slice(2);
const load = createRequire(modules + "/");
const { OpenAI } = load("openai");
const { Anthropic } = load("@anthropic-ai/sdk");
const { Apportion } = await import(library);

let now = Date.parse("2026-03-10T12:00:00.000Z");
const slept = [];
const quota = new Apportion(url, token, {
  clock: () => now,
  sleep: async (ms) => { slept.push(ms); now += ms; },
  onError: (error) => process.stderr.write(`${error}\n`),
  ...(spool ? { spool, outage: { pro: 10, standard: 3 }, timeoutMs: 10_000 } : {}),
});
const clients = {
  openai: new OpenAI({ baseURL: vendor + "/v1", apiKey: "k", timeout: 10_000 }),
  anthropic: new Anthropic({ baseURL: vendor, apiKey: "k", timeout: 10_000 }),
};

// A call: vendor, prompt, stream, user, id; `leave` after so many events.
async function call({ of, prompt, stream, user = "u", id, leave, method, max = 40, feature, timeout, more }) {
  const client = quota[of === "anthropic" ? "anthropic" : "openai"](clients[of], user, feature ? { feature } : {});
  const check = { ...(id ? { request_id: id } : {}), input_tokens: 1000 };
  const messages = [{ role: "user", content: prompt }];
  // Both: the clients' own time-out is over when a stream has begun.
  const signal = timeout ? AbortSignal.timeout(timeout) : undefined;
  const options = signal && { signal, timeout };
  let answer;
  if (method === "responses") answer = await client.responses.create({ model: "m", input: prompt, stream, max_output_tokens: max }, check, options);
  else if (of === "openai") answer = await client.chat.completions.create({ model: "m", messages, stream, ...(max ? { max_tokens: max } : {}), ...more }, check, options);
  else answer = await client.messages.create({ model: "m", messages, stream, max_tokens: max }, check, options);
  if (!stream) return "answered";
  let events = 0;
  for await (const event of answer) if (events++ === leave) return "left";
  signal?.throwIfAborted();
  return "answered";
}

const does = {
  call,
  // Many at once; what became of each.
  calls: ({ calls }) => Promise.all(calls.map((one) => tried(() => call(one)))),
  pass: ({ ms }) => { now += ms; },
  flush: () => quota.flush(),
  slept: () => slept,
  async long({ id }) {
    return quota.run("u", { request_id: id, input_tokens: 5, max_output_tokens: 40, lease_seconds: 60 }, async (call) => {
      for (let second = 1; second < 100; second++) { now += 1000; await call.progress(second / 10); }
      call.used("openai", { prompt_tokens: 5, completion_tokens: 20 });
    });
  },
  // Usage as someone has it who does not look.
  used: ({ id, usage }) => quota.run("u", { request_id: id, max_output_tokens: 40 }, async (call) => call.used("openai", usage)),
  // What the vendor's client does not get to send.
  unsent: ({ id }) => call({ of: "openai", prompt: "ok|1", id, more: { seed: 1n } }),
  check: (check) => quota.run("u", check, async (call) => call.granted),
};

async function tried(make) {
  try {
    return { ok: (await make()) ?? null };
  } catch (error) {
    const { name, status, code, resetsAt, retryAfterMs, max, limit } = error;
    return { error: name === "Error" ? error.constructor.name : name, status, code, resetsAt, retryAfterMs, max, limit };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, ...how } = JSON.parse(line);
  if (!process.stdout.write(JSON.stringify(await tried(() => does[what](how))) + "\n")) await once(process.stdout, "drain");
}
process.exit(0);
