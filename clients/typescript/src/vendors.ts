/**
 * The official OpenAI and Anthropic clients, for one user: only what is checked can be called.
 *
 * The clients' own retries are off: behind one hold stands one call that may have done work.
 */
import { Call, type Apportion, type Check } from "./index.js";

type Asked = Record<string, any>;
type Create = (asked: any, options?: any) => PromiseLike<any>;
/** What is needed of `new OpenAI()`; any that has it will do. */
export interface OpenAIClient {
  withOptions(options: { maxRetries: number }): { chat: { completions: { create: Create } }; responses: { create: Create } };
}
/** What is needed of `new Anthropic()`. */
export interface AnthropicClient {
  withOptions(options: { maxRetries: number }): { messages: { create: Create } };
}

/** As the client's own, with a check's fields (`request_id`, `input_tokens` if your estimate is better) behind it. */
export type Guarded = (asked: Asked, check?: Check, options?: object) => Promise<any>;

export function openai(quota: Apportion, client: OpenAIClient, user: string, check: Check) {
  const once = client.withOptions({ maxRetries: 0 });
  return {
    chat: { completions: { create: guard(quota, user, check, Chat, (a, o) => once.chat.completions.create(a, o)) } },
    responses: { create: guard(quota, user, check, Responses, (a, o) => once.responses.create(a, o)) },
  };
}

export function anthropic(quota: Apportion, client: AnthropicClient, user: string, check: Check) {
  const once = client.withOptions({ maxRetries: 0 });
  return { messages: { create: guard(quota, user, check, Messages, (a, o) => once.messages.create(a, o)) } };
}

function guard(quota: Apportion, user: string, usual: Check, kind: new (asked: Asked) => Shape, create: Create): Guarded {
  return async (asked, check, options) => {
    const shape = new kind(asked);
    const cap = shape.caps.find((name) => asked[name]);
    const choices = asked.n || 1; // the vendor's cap is one for each of them
    const known = { model: asked.model, input_tokens: estimate(asked), ...(cap ? { max_output_tokens: asked[cap] * choices } : {}) };
    const call = await Call.begin(quota, user, { ...known, ...usual, ...check });
    try {
      const most = call.granted ? { [cap ?? shape.caps[0]!]: Math.max(1, Math.floor(call.granted / choices)) } : {};
      // What the clients throw themselves is about what they will not send; what happens on the way has other names.
      call.unsent = ["TypeError", "OpenAIError", "AnthropicError"];
      const answer = await create({ ...asked, ...most, ...shape.more() }, options);
      call.unsent = [];
      if (asked.stream) return new Stream(call, shape, answer);
      shape.whole(call, answer);
      await call.end();
      return answer;
    } catch (error) {
      await call.end(error);
      throw error;
    }
  };
}

/** The vendor's events; the call ends when they do, or when nobody reads on. */
export class Stream implements AsyncIterableIterator<any> {
  #events: AsyncIterator<any>;
  constructor(private readonly call: Call, private readonly shape: Shape, answer: AsyncIterable<any>) {
    this.#events = answer[Symbol.asyncIterator]();
  }
  [Symbol.asyncIterator]() { return this; }

  async next(): Promise<IteratorResult<any>> {
    try {
      for (;;) {
        const result = await this.#events.next();
        if (result.done) await this.call.end();
        if (result.done || (await this.shape.event(this.call, result.value))) return result;
      }
    } catch (error) {
      await this.call.end(error);
      throw error;
    }
  }

  /** Nobody reads on: what a loop calls that is left. */
  async return(): Promise<IteratorResult<any>> {
    await this.call.end();
    await this.#events.return?.();
    return { done: true, value: undefined };
  }
}

/** How one method of a vendor is asked, and where it says what was used. */
abstract class Shape {
  protected written = 0;
  abstract readonly caps: string[];
  constructor(protected readonly asked: Asked) {}
  more(): Asked { return {}; }
  whole(call: Call, answer: any): void { call.used("openai", answer.usage); }
  /** Whether the event is for the product too. */
  abstract event(call: Call, event: any): Promise<boolean>;
  protected async wrote(call: Call, text: string | null | undefined): Promise<true> {
    this.written += text?.length ?? 0;
    await call.progress(this.written / 4);
    return true;
  }
}

class Chat extends Shape {
  readonly caps = ["max_completion_tokens", "max_tokens"];
  override more(): Asked {
    return this.asked.stream ? { stream_options: { ...this.asked.stream_options, include_usage: true } } : {};
  }
  async event(call: Call, event: any): Promise<boolean> {
    this.whole(call, event);
    await this.wrote(call, event.choices[0]?.delta?.content);
    // Who did not ask for the usage does not expect it.
    return event.choices.length > 0 || Boolean(this.asked.stream_options?.include_usage);
  }
}

class Responses extends Shape {
  readonly caps = ["max_output_tokens"];
  async event(call: Call, event: any): Promise<boolean> {
    if (["response.completed", "response.incomplete", "response.failed"].includes(event.type)) this.whole(call, event.response);
    return event.type === "response.output_text.delta" ? this.wrote(call, event.delta) : true;
  }
}

class Messages extends Shape {
  readonly caps = ["max_tokens"];
  #usage: Asked = {};
  override whole(call: Call, answer: any): void { call.used("anthropic", answer.usage); }
  async event(call: Call, event: any): Promise<boolean> {
    if (event.type === "message_start") this.#usage = event.message.usage;
    if (event.type === "message_delta") {
      const told = Object.entries(event.usage).filter(([, value]) => value != null);
      call.used("anthropic", { ...this.#usage, ...Object.fromEntries(told) });
    }
    return event.type === "content_block_delta" ? this.wrote(call, event.delta.text) : true;
  }
}

/** A guess at the input that errs on the safe side: half a token a character. */
function estimate({ messages, system, tools, input, instructions }: Asked): number {
  return Math.ceil(JSON.stringify([messages, system, tools, input, instructions]).length / 2);
}
