// One call by a vendor's own client: prints the status and Apportion's code.
// usage: node attempts.mjs MODULES openai|anthropic URL MODEL
import { createRequire } from "node:module";

const [modules, shape, url, model] = process.argv.slice(2);
const load = createRequire(modules + "/");
const messages = [{ role: "user", content: "hi" }];

async function call() {
  if (shape === "openai") {
    const { OpenAI } = load("openai");
    return new OpenAI({ baseURL: url + "/v1", apiKey: "k" }).chat.completions.create({ model, messages });
  }
  const { Anthropic } = load("@anthropic-ai/sdk");
  return new Anthropic({ baseURL: url, apiKey: "k" }).messages.create({ model, messages, max_tokens: 5 });
}

try {
  await call();
  console.log(JSON.stringify([200, null]));
} catch (refused) {
  if (!refused.status) throw refused;
  const error = refused.error.error ?? refused.error;
  console.log(JSON.stringify([refused.status, error.details.error_code]));
}
