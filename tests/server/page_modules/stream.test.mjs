import assert from "node:assert/strict";
import test from "node:test";

import { Api, ServerError, advise } from "./api.js";
import { Answer, EventSplitter, readEvents } from "./stream.js";

const body = (...parts) => new Blob(parts).stream();
const chunk = (delta, more = {}) => ({ model: "m", choices: [{ index: 0, delta, finish_reason: null }], ...more });
const sse = (...chunks) => [...chunks.map((each) => `data: ${JSON.stringify(each)}\n\n`), "data: [DONE]\n\n"].join("");
const reply = (text, status = 200, headers = {}) => new Response(text, { status, headers });
const api = (response, key = "") =>
  new Api(
    () => key,
    async (...given) => ((api.last = given), typeof response === "function" ? response(...given) : response),
  );
const ask = (server, options = {}) =>
  server.chat({ messages: [] }, { signal: new AbortController().signal, onChange: () => {}, ...options });

test("events are the same however the text is cut", () => {
  const text = ': keep-alive\n\ndata: {"a": 1}\n\ndata: one\ndata:two\r\n\r\nevent: x\nid: 3\ndata: é😀\n\n';
  for (let cut = 0; cut <= text.length; cut += 1) {
    const splitter = new EventSplitter();
    const events = [...splitter.feed(text.slice(0, cut)), ...splitter.feed(text.slice(cut))];
    assert.deepEqual(events, ['{"a": 1}', "one\ntwo", "é😀"], `cut at ${cut}`);
  }
});

test("bytes of a character may come apart", async () => {
  const bytes = new TextEncoder().encode("data: 😀\n\n");
  const events = [];
  for await (const event of readEvents(body(bytes.slice(0, 7), bytes.slice(7, 9), bytes.slice(9)))) events.push(event);
  assert.deepEqual(events, ["😀"]);
});

test("an answer is put together: text, reasoning, calls, reason, usage, speed", () => {
  let now = 1000;
  const answer = new Answer(() => now);
  const usage = {
    prompt_tokens: 9,
    completion_tokens: 5,
    prompt_tokens_details: { cached_tokens: 4 },
    completion_tokens_details: { reasoning_tokens: 2 },
  };
  answer.add(chunk({ role: "assistant", content: "" }));
  assert.equal(answer.firstMs, null);
  for (const delta of [
    { reasoning_content: "hm" },
    { content: "He" },
    { content: "llo" },
    { tool_calls: [{ index: 0, id: "c1", type: "function", function: { name: "f", arguments: "" } }] },
    { tool_calls: [{ index: 0, function: { arguments: '{"a":' } }] },
    { tool_calls: [{ index: 0, function: { arguments: "1}" } }] },
    { tool_calls: [{ index: 1, id: "c2", type: "function", function: { name: "g", arguments: "{}" } }] },
  ]) {
    now += 100;
    answer.add(chunk(delta));
  }
  answer.add({ choices: [{ index: 0, delta: {}, finish_reason: "tool_calls" }] });
  answer.add({ choices: [], usage });

  assert.deepEqual([answer.content, answer.reasoning, answer.finish, answer.model], ["Hello", "hm", "tool_calls", "m"]);
  assert.deepEqual(answer.calls, [
    { id: "c1", name: "f", arguments: '{"a":1}' },
    { id: "c2", name: "g", arguments: "{}" },
  ]);
  assert.deepEqual(answer.usage, { prompt: 9, cached: 4, completion: 5, reasoning: 2 });
  assert.equal(answer.firstMs, 100);
  assert.equal(answer.rate, (5 - 1) / 0.6);
});

test("a rate needs time and pieces to mean something", () => {
  const answer = new Answer(() => 5);
  for (const text of "abcd") answer.add(chunk({ content: text }));
  assert.equal(answer.rate, null);
});

test("a chat asks for a stream with usage, and sends the key if there is one", async () => {
  const seen = [];
  const server = api(reply(sse(chunk({ content: "Hi" }), { choices: [], usage: { prompt_tokens: 1 } })), "secret");
  const answer = await ask(server, { onChange: ({ content }) => seen.push(content) });

  const [path, { headers, body: sent }] = api.last;
  assert.equal(path, "v1/chat/completions");
  assert.equal(headers.authorization, "Bearer secret");
  assert.deepEqual(JSON.parse(sent), { messages: [], stream: true, stream_options: { include_usage: true } });
  assert.equal(answer.content, "Hi");
  assert.equal(seen[0], "Hi");
});

test("an error of the server keeps its words, field and code", async () => {
  const error = {
    error: { message: "temperature is -1", type: "invalid_request_error", param: "temperature", code: "invalid_value" },
  };
  await assert.rejects(ask(api(reply(JSON.stringify(error), 400))), {
    status: 400,
    param: "temperature",
    message: "temperature is -1",
  });
  await assert.rejects(ask(api(reply("<html>", 502))), { status: 502, message: /502/ });
  await assert.rejects(ask(api(() => Promise.reject(new TypeError("x")))), { status: 0 });
});

test("an error in a stream, and a stream that breaks, keep what has come", async () => {
  const broken = sse(chunk({ content: "Hi" })).replace("data: [DONE]\n\n", "");
  const failed = `${broken}data: {"error": {"message": "late", "code": "timeout"}}\n\n`;
  for (const [text, message] of [
    [broken, /broke/],
    [failed, "late"],
  ]) {
    await assert.rejects(ask(api(reply(text))), (error) => {
      assert.ok(error instanceof ServerError);
      assert.match(error.message, new RegExp(message));
      assert.equal(error.answer.content, "Hi");
      return true;
    });
  }
});

test("a stopped answer is what has come so far", async () => {
  const control = new AbortController();
  const endless = new ReadableStream({
    start(controller) {
      controller.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(chunk({ content: "Hi" }))}\n\n`));
      control.signal.addEventListener("abort", () => controller.error(new DOMException("stopped", "AbortError")));
    },
  });
  const answer = await ask(api(reply(endless)), { signal: control.signal, onChange: () => control.abort() });
  assert.deepEqual([answer.content, answer.finish], ["Hi", "stopped"]);
});

test("every error has a title, advice and something to do", () => {
  const of = (status, code = null, param = null) => advise({ status, code, param });
  assert.equal(of(401, "invalid_api_key").action, "key");
  assert.equal(of(400, "invalid_value", "top_p").action, "settings");
  assert.match(of(400, "invalid_value", "top_p").advice, /top_p/);
  assert.equal(of(400, "context_length_exceeded").action, "new");
  for (const status of [0, 400, 403, 404, 408, 413, 429, 500, 501, 503, 504]) {
    const { title, advice, action } = of(status);
    assert.ok(title && advice && action, String(status));
  }
});
