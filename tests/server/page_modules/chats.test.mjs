import assert from "node:assert/strict";
import test from "node:test";

import {
  addMessage,
  branchesAt,
  choose,
  copyChat,
  dropBranch,
  newChat,
  openCalls,
  pathOf,
  requestMessages,
  titleOf,
} from "./chats.js";
import { FIELDS, cleanSettings, noSettings, readNumber, readTools, requestFields } from "./settings.js";
import { NotAnExport, ShortMemory, Store, storageOf } from "./store.js";

class Memory extends ShortMemory {
  full = false;

  setItem(key, value) {
    if (this.full) throw new Error("QuotaExceededError");
    super.setItem(key, value);
  }
}

const user = (content) => ({ role: "user", content });
const answer = (content, more = {}) => ({ role: "assistant", content, state: "done", ...more });
const shown = (chat) => pathOf(chat).map(({ content }) => content);

function talk(...texts) {
  const chat = newChat();
  let parent = null;
  texts.forEach((text, index) => {
    parent = addMessage(chat, parent, index % 2 ? answer(text) : user(text)).id;
  });
  return chat;
}

test("an edited message is a branch, and the old one with all that follows can be shown again", () => {
  const chat = talk("a", "b", "c", "d");
  const third = pathOf(chat)[2];
  const edited = addMessage(chat, third.parent, user("C"));

  assert.deepEqual(shown(chat), ["a", "b", "C"]);
  assert.deepEqual(branchesAt(chat, edited.id), [third.id, edited.id]);
  choose(chat, third.id);
  assert.deepEqual(shown(chat), ["a", "b", "c", "d"]);
});

test("the first message may have branches, too", () => {
  const chat = talk("a", "b");
  const first = pathOf(chat)[0];
  addMessage(chat, null, user("A"));

  assert.deepEqual(shown(chat), ["A"]);
  choose(chat, first.id);
  assert.deepEqual(shown(chat), ["a", "b"]);
});

test("a dropped branch takes what follows with it and shows the one beside", () => {
  const chat = talk("a", "b", "c", "d");
  const third = pathOf(chat)[2];
  addMessage(chat, third.parent, user("C"));
  dropBranch(chat, third.id);

  assert.deepEqual(shown(chat), ["a", "b", "C"]);
  assert.equal(Object.keys(chat.nodes).length, 3);
  dropBranch(chat, pathOf(chat)[0].id);
  assert.deepEqual([shown(chat), chat.nodes, chat.root.children], [[], {}, []]);
});

test("a request holds the system prompt and the branch up to the question", () => {
  const chat = talk("a", "b", "c", "d");
  chat.system = "be kind";
  const call = { id: "c1", name: "f", arguments: "{}" };
  const asks = addMessage(chat, pathOf(chat)[2].id, answer("", { reasoning: "hm", calls: [call] }));
  addMessage(chat, asks.id, answer(""));
  const result = addMessage(chat, asks.id, { role: "tool", content: "5", call: "c1" });

  assert.deepEqual(requestMessages(chat, result.id), [
    { role: "system", content: "be kind" },
    { role: "user", content: "a" },
    { role: "assistant", content: "b" },
    { role: "user", content: "c" },
    {
      role: "assistant",
      content: null,
      reasoning_content: "hm",
      tool_calls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }],
    },
    { role: "tool", tool_call_id: "c1", content: "5" },
  ]);
});

test("calls are open until each has its result", () => {
  const chat = talk("a");
  const calls = [
    { id: "1", name: "f", arguments: "{}" },
    { id: "2", name: "g", arguments: "{}" },
  ];
  const asks = addMessage(chat, pathOf(chat)[0].id, answer("", { calls }));
  assert.deepEqual(openCalls(chat, asks.id), calls);
  addMessage(chat, asks.id, { role: "tool", content: "x", call: "1" });
  assert.deepEqual(openCalls(chat, asks.id), [calls[1]]);
});

test("titles are short and of one line", () => {
  assert.equal(titleOf(" a\n b "), "a b");
  assert.equal(titleOf("x".repeat(100)).length, 60);
});

test("what is saved comes back, newest first, and an answer that was cut is marked as stopped", () => {
  const store = new Store(new Memory());
  const [old, young] = [talk("old", "x"), talk("young")];
  Object.assign(old, { updated: 1 });
  Object.assign(young, { updated: 2 });
  addMessage(young, pathOf(young)[0].id, answer("hal", { state: "running" }));
  for (const chat of [old, young]) store.save(chat);

  assert.deepEqual(
    store.list().map(({ title }) => title),
    ["young", "old"],
  );
  assert.deepEqual(store.load(old.id), old);
  assert.equal(pathOf(store.load(young.id))[1].state, "stopped");
  store.remove(old.id);
  assert.equal(store.load(old.id), null);
  assert.equal(store.load("nobody"), null);
});

test("an export of everything can be imported elsewhere, twice", () => {
  const [here, there] = [new Store(new Memory()), new Store(new Memory())];
  const chat = talk("a", "b", "c");
  chat.system = "kind";
  const edited = addMessage(chat, pathOf(chat)[1].id, user("C"));
  addMessage(
    chat,
    edited.id,
    answer("", { state: "failed", error: { status: 400, code: "x", param: null, message: "m" }, usage: { prompt: 3 } }),
  );
  here.save(chat);

  const text = here.exportText();
  assert.equal(there.importText(text), 1);
  assert.equal(there.importText(text), 1);

  const copies = there.list().map(({ id }) => there.load(id));
  assert.equal(copies.length, 2);
  for (const copy of copies) {
    assert.deepEqual([copy.system, copy.title, shown(copy)], ["kind", "a", ["a", "b", "C", ""]]);
    assert.equal(branchesAt(copy, pathOf(copy)[2].id).length, 2);
    assert.deepEqual([pathOf(copy)[3].error.message, pathOf(copy)[3].usage], ["m", { prompt: 3 }]);
  }
});

test("a file of another kind is refused, and what is wrong in a chat is left out", () => {
  const store = new Store(new Memory());
  for (const text of ["{", "[]", "null", '{"chats": []}', '{"format": "onnx-genai-chats"}'])
    assert.throws(() => store.importText(text), NotAnExport, text);

  const nodes = {
    a: {
      role: "user",
      content: 5,
      children: ["b", "a", "__proto__", "nobody"],
      chosen: "b",
      state: "running",
      calls: "x",
    },
    b: {
      role: "assistant",
      content: "hi",
      children: ["a"],
      state: "running",
      usage: { prompt: "x", cached: 2 },
      evil: "<b>",
    },
    c: { role: "root", content: "x" },
  };
  const copy = copyChat({ title: 7, root: { children: ["a", "c", "constructor"], chosen: "a" }, nodes });
  assert.deepEqual(shown(copy), ["", "hi"]);
  assert.deepEqual(
    [pathOf(copy)[1].state, pathOf(copy)[1].usage, pathOf(copy)[1].evil],
    ["stopped", { cached: 2 }, undefined],
  );
  assert.equal(copyChat({ nodes: {} }), null);
  assert.equal({}.polluted, undefined);
});

test("a full or damaged storage is told and does not throw", () => {
  const memory = new Memory();
  let told = 0;
  const store = new Store(memory, () => (told += 1));
  memory.setItem("onnx-genai/chat/x", "{damaged");
  memory.setItem("onnx-genai/settings", "7");
  memory.full = true;

  store.save(talk("a"));
  assert.equal(told, 1);
  assert.deepEqual(store.list(), []);
  assert.deepEqual(store.settings(), noSettings());
});

test("unsent text is kept with its chat", () => {
  const store = new Store(new Memory());
  store.setDraft("x", "half a");
  assert.equal(store.draft("x"), "half a");
  store.setDraft("x", "");
  assert.equal(store.draft("x"), "");
});

test("numbers are read as people write them and checked", () => {
  const field = Object.fromEntries(FIELDS.map((each) => [each.name, each]));
  assert.deepEqual(readNumber(field.temperature, " 0,7 "), { value: 0.7 });
  assert.deepEqual(readNumber(field.top_k, ""), { value: null });
  for (const [name, text] of [
    ["temperature", "-1"],
    ["top_p", "1.1"],
    ["top_k", "1.5"],
    ["seed", "x"],
    ["max_tokens", "0"],
    ["seed", "1e400"],
    ["seed", String(2 ** 60)],
  ]) {
    assert.ok(readNumber(field[name], text).error, `${name} ${text}`);
  }
});

test("only what is set is sent", () => {
  assert.deepEqual(requestFields(noSettings()), {});
  assert.deepEqual(requestFields({ ...noSettings(), temperature: 0, seed: 5, reasoning_effort: "none" }), {
    temperature: 0,
    seed: 5,
    reasoning_effort: "none",
  });
  assert.deepEqual(cleanSettings({ temperature: "x", top_p: 9, top_k: 4, evil: 1, reasoning_effort: "huge" }), {
    ...noSettings(),
    top_k: 4,
  });
});

test("tools may be OpenAI's or bare functions", () => {
  const f = { name: "f", parameters: { type: "object" } };
  assert.deepEqual(readTools(""), { tools: [] });
  assert.deepEqual(readTools(JSON.stringify(f)).tools, [{ type: "function", function: f }]);
  assert.deepEqual(readTools(JSON.stringify([{ type: "function", function: f }])).tools, [
    { type: "function", function: f },
  ]);
  for (const text of ["{", "[{}]", "[null]", "5"]) assert.ok(readTools(text).error, text);
});

test("without a storage of the browser things are kept for a while", () => {
  const refuse = () => {
    throw new Error("SecurityError");
  };
  const store = new Store(storageOf(refuse));
  const chat = talk("a");
  store.save(chat);
  assert.deepEqual(store.load(chat.id), chat);
  assert.ok(storageOf(() => null) instanceof ShortMemory);
});
