// Asks the server for answers and lets them grow in their chats. Several chats may be answered at once.

import { addMessage, requestMessages } from "./chats.js";
import { readTools, requestFields } from "./settings.js";

const SAVE_MS = 1000;

/** Runs answers. `events`: onStart, onGrow, onEnd (chat, node); `save(chat)` keeps a chat. */
export class Asker {
  #api;
  #save;
  #events;
  #runs = new Map();

  constructor(api, save, events) {
    this.#api = api;
    this.#save = save;
    this.#events = events;
  }

  /** Whether an answer grows in the chat. */
  isBusy(chat) {
    return this.#runs.has(chat.id);
  }

  /** The chat as it grows, or null: what is in the storage may be older. */
  busyChat(id) {
    return this.#runs.get(id)?.chat ?? null;
  }

  /** Ends the answer that grows in a chat; what has come stays. */
  stop(chat) {
    this.#runs.get(chat.id)?.control.abort();
  }

  /** Asks for an answer to the message with id `parent`, and returns when it is there or has failed. */
  async ask(chat, parent, { model, settings }) {
    if (this.isBusy(chat)) return;
    const body = { messages: requestMessages(chat, parent), ...requestFields(settings) };
    const { tools } = readTools(chat.tools);
    if (tools?.length) body.tools = tools;
    if (model) body.model = model;
    const node = addMessage(chat, parent, { role: "assistant", content: "", model, state: "running" });
    const run = { chat, node, control: new AbortController(), saved: performance.now() };
    this.#runs.set(chat.id, run);
    this.#keep(run);
    this.#events.onStart(chat, node);
    try {
      const answer = await this.#api.chat(body, {
        signal: run.control.signal,
        onChange: (given) => this.#grow(run, given),
      });
      take(node, answer);
      node.state = answer.finish === "stopped" ? "stopped" : "done";
    } catch (error) {
      if (error.answer) take(node, error.answer);
      node.state = "failed";
      node.error = error.facts ?? { status: 0, message: String(error) };
    }
    this.#runs.delete(chat.id);
    this.#keep(run);
    this.#events.onEnd(chat, node);
  }

  #grow(run, answer) {
    take(run.node, answer);
    this.#events.onGrow(run.chat, run.node);
    if (performance.now() - run.saved > SAVE_MS) this.#keep(run);
  }

  #keep(run) {
    run.saved = performance.now();
    run.chat.updated = Date.now();
    this.#save(run.chat);
  }
}

/** Puts what has come of an answer into its message. */
function take(node, answer) {
  node.content = answer.content;
  if (answer.reasoning) node.reasoning = answer.reasoning;
  if (answer.calls.length) node.calls = answer.calls.filter(Boolean);
  if (answer.model) node.model = answer.model;
  if (answer.finish) node.finish = answer.finish;
  if (answer.usage) node.usage = answer.usage;
  node.times = { first: answer.firstMs, rate: answer.rate, pieces: answer.pieces, thought: thoughtMs(node, answer) };
}

/** Milliseconds until the text began, for an answer that reasons first. */
function thoughtMs(node, answer) {
  if (!answer.reasoning) return null;
  const begun = answer.content || answer.calls.length || answer.finish;
  return node.times?.thought ?? (begun ? performance.now() - answer.started : null);
}
