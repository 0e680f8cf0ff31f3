// A chat backend whose users have plans. What Apportion adds is marked with `// +`.
//
// APPORTION_URL, APPORTION_TOKEN, OPENAI_API_KEY (and OPENAI_BASE_URL): node server.mjs [PORT]
import { createServer } from "node:http";
import OpenAI from "openai";
import { Apportion, Refused } from "apportion"; // +

const quota = new Apportion(process.env.APPORTION_URL, process.env.APPORTION_TOKEN); // +
const vendor = new OpenAI();

async function chat(request, response) {
  const question = JSON.parse(Buffer.concat(await request.toArray()));
  const client = quota.openai(vendor, request.headers["x-user"], { feature: "chat" }); // +
  const chunks = await client.chat.completions.create({
    model: "gpt-5", messages: [{ role: "user", content: question.text }], max_tokens: 512, stream: true,
  });
  response.writeHead(200, { "content-type": "text/plain" });
  for await (const chunk of chunks) {
    if (response.destroyed) break; // whoever hangs up ends the call
    response.write(chunk.choices[0].delta.content ?? "");
  }
  response.end();
}

const server = createServer((request, response) => {
  chat(request, response).catch((error) => {
    if (response.headersSent) return response.destroy(error);
    const known = error instanceof Refused; // +
    const wait = known && error.retryAfterMs ? { "retry-after": Math.ceil(error.retryAfterMs / 1000) } : {}; // +
    response.writeHead(known ? error.status : 502, { "content-type": "application/json", ...wait });
    response.end(JSON.stringify(known ? error.problem : { code: "vendor_failed" })); // +
  });
});
server.listen(Number(process.argv[2] ?? 3000), "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
