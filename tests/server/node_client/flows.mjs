// Runs one flow after the other with OpenAI's client for JavaScript and prints what came of them as one JSON object.
//
//   node flows.mjs SETTINGS
//
// SETTINGS is a JSON object: `baseURL`; `hesitantURL`, which says "come again" to the first three requests; `modules`,
// the folder that holds the package "openai"; names of models, `chatModel`, `toolModel`, `formModel`, `vectorModel`;
// `texts`, of which vectors are made; `firstChoice`, the tool_choice of the first turn.

import { createRequire } from "node:module";
import path from "node:path";

const { baseURL, hesitantURL, modules, chatModel, toolModel, formModel, vectorModel, texts, firstChoice } = JSON.parse(
  process.argv[2],
);
const require = createRequire(path.join(path.resolve(modules), "flows.js"));
const { OpenAI } = require("openai");

const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0, timeout: 300_000 });
const hi = [{ role: "user", content: "Say hello to the world." }];
const short = { model: chatModel, temperature: 0, max_tokens: 24 };

const functions = [
  {
    name: "weather",
    description: "Tells how warm it is in a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Zürich", "Oslo"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
  { name: "clock", description: "Tells the time." },
];
const runTool = {
  weather: ({ city }) => `21 degrees in ${city}`,
  clock: () => "12:00",
};

async function chat() {
  const answer = await client.chat.completions.create({ ...short, messages: hi });
  return { text: answer.choices[0].message.content, reason: answer.choices[0].finish_reason, usage: answer.usage };
}

async function streamedChat() {
  const stream = await client.chat.completions.create({
    ...short,
    messages: hi,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  return { text, usage };
}

async function accumulatedChat() {
  const runner = client.chat.completions.stream({ ...short, messages: hi });
  return { message: (await runner.finalChatCompletion()).choices[0].message };
}

async function leftStream() {
  const stream = await client.chat.completions.create({ ...short, messages: hi, stream: true });
  for await (const _ of stream) break; // leaving the loop aborts the request
  return { aborted: stream.controller.signal.aborted };
}

async function logprobs() {
  const answer = await client.chat.completions.create({ ...short, messages: hi, logprobs: true, top_logprobs: 2 });
  return { entries: answer.choices[0].logprobs.content };
}

async function tools(stream) {
  const messages = [{ role: "user", content: "What time is it in Zürich, and how warm?" }];
  const called = [];
  for (let turn = 0; turn < 4; turn++) {
    const body = {
      model: toolModel,
      temperature: 0,
      max_tokens: 300,
      messages,
      tools: functions.map((each) => ({ type: "function", function: each })),
      tool_choice: turn ? "auto" : firstChoice,
    };
    const answer = stream
      ? await client.chat.completions.stream(body).finalChatCompletion()
      : await client.chat.completions.create(body);
    const { message } = answer.choices[0];
    if (!message.tool_calls?.length) return { called, text: message.content };
    messages.push(message);
    for (const { id, function: call } of message.tool_calls) {
      const given = JSON.parse(call.arguments);
      called.push([call.name, given]);
      messages.push({ role: "tool", tool_call_id: id, content: runTool[call.name](given) });
    }
  }
  return { called, text: null };
}

async function runTools() {
  const called = [];
  const runner = client.chat.completions.runTools({
    model: toolModel,
    temperature: 0,
    max_tokens: 300,
    messages: [{ role: "user", content: "What time is it in Zürich, and how warm?" }],
    tools: functions.map((each) => ({
      type: "function",
      function: {
        parameters: { type: "object", properties: {} },
        ...each,
        parse: JSON.parse,
        function: (given) => {
          called.push([each.name, given]);
          return runTool[each.name](given);
        },
      },
    })),
  });
  return { text: await runner.finalContent(), called };
}

const person = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 150 } },
  required: ["name", "age"],
  additionalProperties: false,
};

async function form() {
  const answer = await client.chat.completions.create({
    model: formModel,
    temperature: 0,
    max_tokens: 200,
    messages: [{ role: "user", content: "Who is Ada, and how old?" }],
    response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } },
  });
  return { object: JSON.parse(answer.choices[0].message.content), reason: answer.choices[0].finish_reason };
}

async function responses() {
  const body = { model: chatModel, temperature: 0, max_output_tokens: 24 };
  const first = await client.responses.create({ ...body, input: "Say hello to the world." });
  const kinds = [];
  let text = "";
  const stream = await client.responses.create({ ...body, input: "And again.", previous_response_id: first.id, stream: true });
  for await (const event of stream) {
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  const whole = await client.responses.stream({ ...body, input: "Say hello to the world." }).finalResponse();
  return { text: first.output_text, again: text, whole: whole.output_text, first: kinds[0], last: kinds.at(-1) };
}

async function completions() {
  const body = { model: chatModel, temperature: 0, max_tokens: 8, prompt: ["a", "b"] };
  const whole = await client.completions.create(body);
  const texts = ["", ""];
  for await (const chunk of await client.completions.create({ ...body, stream: true })) {
    texts[chunk.choices[0].index] += chunk.choices[0].text;
  }
  return { whole: whole.choices.map((each) => each.text), texts };
}

async function embeddings() {
  const body = { model: vectorModel, input: texts };
  const coded = await client.embeddings.create(body); // asks for base64 and decodes it
  const plain = await client.embeddings.create({ ...body, encoding_format: "float" });
  const cut = await client.embeddings.create({ ...body, dimensions: 3 });
  const vectors = (answer) => answer.data.map((each) => Array.from(each.embedding));
  return { coded: vectors(coded), plain: vectors(plain), cut: vectors(cut), usage: coded.usage };
}

async function models() {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  return { ids, one: (await client.models.retrieve(chatModel)).id };
}

async function errors() {
  const found = {};
  const attempts = {
    unknown: { model: "nobody", messages: hi },
    wrong: { model: chatModel, messages: hi, temperature: -1 },
    long: { model: chatModel, messages: [{ role: "user", content: "x ".repeat(40_000) }] },
  };
  for (const [name, body] of Object.entries(attempts)) {
    try {
      await client.chat.completions.create(body);
    } catch (error) {
      found[name] = {
        kind: error.constructor.name,
        status: error.status,
        code: error.code,
        param: error.param,
        id: error.requestID,
      };
    }
  }
  return found;
}

async function retries() {
  const body = { ...short, messages: hi };
  const once = new OpenAI({ baseURL: hesitantURL, apiKey: "any", maxRetries: 0, timeout: 300_000 });
  const patient = new OpenAI({ baseURL: hesitantURL, apiKey: "any", maxRetries: 2, timeout: 300_000 });
  let refused = null;
  try {
    await once.chat.completions.create(body);
  } catch (error) {
    refused = { kind: error.constructor.name, status: error.status, code: error.code };
  }
  const answer = await patient.chat.completions.create(body);
  return { refused, text: answer.choices[0].message.content };
}

const flows = {
  chat,
  streamedChat,
  accumulatedChat,
  leftStream,
  logprobs,
  tools: () => tools(false),
  streamedTools: () => tools(true),
  ...(firstChoice === "auto" ? { runTools } : {}),
  form,
  responses,
  completions,
  embeddings,
  models,
  errors,
  retries,
};
const results = {};
for (const [name, flow] of Object.entries(flows)) {
  try {
    results[name] = await flow();
  } catch (error) {
    results[name] = { failed: String(error?.stack ?? error) };
  }
}
console.log(JSON.stringify(results));
