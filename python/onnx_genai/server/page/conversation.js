// The messages of the chat that is open, and what is there before the first one.

import { branchesAt, openCalls, pathOf } from "./chats.js";
import { el, icon } from "./dom.js";
import { viewOf } from "./message_views.js";

const EXAMPLES = [
  ["Explain", "Explain how a key-value cache makes text generation faster, in five sentences."],
  ["Write", "Write a short poem about a lighthouse that learns to read."],
  ["Code", "Write a Python function that merges two sorted lists, with a short test."],
  ["Compare", "Compare bubble sort, merge sort and quicksort in a table."],
];

/** Shows a chat in `place`. `actions` as for the views of messages, and `send(text)`. */
export class Conversation {
  #place;
  #actions;
  #chat = null;
  #views = new Map();

  constructor(place, actions) {
    this.#place = place;
    this.#actions = actions;
  }

  /** Shows the whole chat. `state`: {busy, waitingText, greeting}. */
  show(chat, state) {
    if (chat !== this.#chat) this.#views.clear();
    this.#chat = chat;
    const path = pathOf(chat);
    const before = this.#views;
    this.#views = new Map(path.map((node) => [node.id, before.get(node.id) ?? viewOf(node, this.#actions)]));
    for (const node of path) this.#update(node, state);
    const shown = path.map((node) => this.#views.get(node.id).element);
    if (!path.length) shown.push(this.#welcome(state.greeting));
    else if (chat.system.trim()) shown.unshift(this.#systemChip(chat.system));
    this.#settle(shown);
  }

  /** Shows what is new in one message. */
  grow(chat, node, state) {
    if (chat === this.#chat && this.#views.has(node.id)) this.#update(node, state);
  }

  /** Opens the box to edit the last message of the user. */
  editLast() {
    const last = pathOf(this.#chat).findLast((node) => node.role === "user");
    if (last) this.#views.get(last.id).edit();
    return Boolean(last);
  }

  #update(node, state) {
    this.#views.get(node.id).update(node, {
      ...state,
      branches: [...branchesAt(this.#chat, node.id)],
      openCalls: node.role === "assistant" ? openCalls(this.#chat, node.id) : [],
    });
  }

  /** Puts the elements in their order; those that stay in place are not touched, so that they keep focus and folds. */
  #settle(elements) {
    const wanted = new Set(elements);
    for (const child of [...this.#place.children]) if (!wanted.has(child)) child.remove();
    elements.forEach((element, index) => {
      const there = this.#place.children[index];
      if (there !== element) this.#place.insertBefore(element, there ?? null);
    });
  }

  #systemChip(system) {
    const open = () => this.#actions.openSettings("system");
    return el(
      "button.system-chip",
      { type: "button", title: system, onclick: open },
      icon("settings"),
      el("span", {}, `System prompt: ${system.trim().slice(0, 120)}`),
    );
  }

  #welcome({ title, text }) {
    const cards = EXAMPLES.map(([name, prompt]) =>
      el(
        "button.example",
        { type: "button", onclick: () => this.#actions.send(prompt) },
        el("strong", {}, name),
        el("span", {}, prompt),
      ),
    );
    return el(
      "div.welcome",
      {},
      el("img", { src: "page/icon.svg", alt: "", width: 56, height: 56 }),
      el("h1", {}, title),
      el("p", {}, text),
      el("div.examples", {}, cards),
    );
  }
}
