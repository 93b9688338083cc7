// One view for each message: what was said, and what can be done with it.

import { advise } from "./api.js";
import { copyButton, el, icon, iconButton } from "./dom.js";
import { MarkdownView, jsonElement } from "./render.js";

const LONG_CHARACTERS = 1500;
const LONG_LINES = 14;

/** `context` of an update: {branches, isLast, busy, openCalls}. `actions`: what the buttons call. */
export function viewOf(node, actions) {
  const Kind = { user: UserView, tool: ToolView, assistant: AnswerView }[node.role];
  return new Kind(node, actions);
}

class UserView {
  #node;
  #actions;
  #bubble = el("div.bubble");
  #tools = el("div.message-tools");

  constructor(node, actions) {
    this.#node = node;
    this.#actions = actions;
    this.element = el(
      "article.message.user",
      { "aria-label": "You", data: { id: node.id } },
      this.#bubble,
      this.#tools,
    );
    this.#bubble.textContent = node.content;
    if (node.content.length > LONG_CHARACTERS || node.content.split("\n").length > LONG_LINES) this.#shorten();
  }

  #shorten() {
    const button = el("button.show-all", {
      type: "button",
      "aria-expanded": "false",
      onclick: () => fold(!this.#bubble.classList.contains("long")),
    });
    const fold = (isLong) => {
      this.#bubble.classList.toggle("long", isLong);
      button.textContent = isLong ? "Show all" : "Show less";
      button.setAttribute("aria-expanded", String(!isLong));
    };
    fold(true);
    this.#bubble.after(button);
  }

  update(node, { branches, busy }) {
    this.#tools.replaceChildren(
      ...branchSwitch(node, branches, this.#actions),
      copyButton("Copy message", () => node.content),
      iconButton("edit", "Edit and send again from here", () => this.edit()),
      iconButton("trash", "Delete this message and what follows", () => this.#actions.drop(node)),
    );
    for (const button of this.#tools.querySelectorAll(".icon-button:not(.copy)")) button.disabled = busy;
  }

  /** Changes the message to a box with its text. */
  edit() {
    const area = el("textarea", { value: this.#node.content, "aria-label": "Edit the message", rows: 3 });
    const close = () => {
      this.element.classList.remove("editing");
      form.replaceWith(this.#bubble);
    };
    const send = (event) => {
      event.preventDefault();
      if (area.value.trim()) this.#actions.edit(this.#node, area.value.trim());
    };
    const form = el(
      "form.edit",
      { onsubmit: send },
      area,
      el(
        "div.edit-foot",
        {},
        el("span.hint", {}, "Sends from here; the old branch stays beside it."),
        el("button.quiet-button", { type: "button", onclick: close }, "Cancel"),
        el("button.main-button", { type: "submit" }, "Send"),
      ),
    );
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    });
    this.element.classList.add("editing");
    this.#bubble.replaceWith(form);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

class ToolView {
  constructor(node) {
    const summary = el(
      "summary",
      {},
      icon("check"),
      el("span.call-name", {}, node.name || "tool"),
      el("span.hint", {}, "result"),
    );
    this.element = el(
      "article.message.tool",
      { "aria-label": "Result of a tool", data: { id: node.id } },
      el("details.call", { open: true }, summary, jsonElement(node.content)),
    );
  }

  update() {}
}

class AnswerView {
  #actions;
  #prose;
  #waiting = el("div.waiting", { "aria-hidden": "true" }, el("i"), el("i"), el("i"));
  #thought = null;
  #calls = el("div.calls");
  #shownCalls = "";
  #problem = el("div.problem-place");
  #foot = el("div.foot");
  #footKey = "";

  constructor(node, actions) {
    this.#actions = actions;
    this.#prose = new MarkdownView(el("div.prose"));
    this.#waiting.append(el("span.waiting-text"));
    this.element = el(
      "article.message.assistant",
      { "aria-label": "Answer", data: { id: node.id } },
      this.#prose.element,
      this.#calls,
      this.#waiting,
      this.#problem,
      this.#foot,
    );
  }

  update(node, context) {
    const runs = node.state === "running";
    this.element.setAttribute("aria-busy", String(runs));
    this.element.classList.toggle("running", runs);
    this.element.classList.toggle("writing", runs && Boolean(node.content));
    this.#showReasoning(node, runs);
    this.#prose.update(node.content);
    this.#showCalls(node, context);
    this.#waiting.hidden = !runs || Boolean(node.content || node.reasoning || node.calls?.length);
    this.#waiting.lastChild.textContent = context.waitingText ?? "";
    this.#showFoot(node, context, runs);
  }

  #showReasoning(node, runs) {
    if (!node.reasoning) return;
    if (!this.#thought) {
      this.#thought = { title: el("span"), view: new MarkdownView(el("div.prose.reasoning-text")) };
      const summary = el("summary", {}, icon("brain"), this.#thought.title, icon("chevron"));
      this.element.prepend(el("details.reasoning", {}, summary, this.#thought.view.element));
    }
    const thinks = runs && !node.content && !node.calls?.length;
    this.#thought.title.textContent = thinks ? "Thinking…" : thoughtTitle(node.times?.thought);
    this.#thought.title.classList.toggle("shimmer", thinks);
    this.#thought.view.update(node.reasoning);
  }

  #showCalls(node, { openCalls }) {
    const key = JSON.stringify([node.calls, openCalls, node.state]);
    if (key === this.#shownCalls) return;
    this.#shownCalls = key;
    const cards = (node.calls ?? []).map(callCard);
    const asks = openCalls.length && node.state !== "running";
    this.#calls.replaceChildren(...cards, ...(asks ? [this.#resultForm(node, openCalls)] : []));
  }

  /** The page runs no tools; the reader may play their part. */
  #resultForm(node, calls) {
    const areas = calls.map((call) =>
      el("textarea", { rows: 2, placeholder: `What ${call.name} answers`, "aria-label": `Result of ${call.name}` }),
    );
    const send = (event) => {
      event.preventDefault();
      this.#actions.answerCalls(
        node,
        calls.map((call, index) => ({ call, text: areas[index].value })),
      );
    };
    return el(
      "form.results",
      { onsubmit: send },
      el("p.hint", {}, "The model waits for the result; this page runs no tools itself."),
      areas,
      el("button.main-button", { type: "submit" }, calls.length > 1 ? "Send results" : "Send result"),
    );
  }

  #showFoot(node, context, runs) {
    const stats = statistics(node);
    const key = JSON.stringify([stats, node.state, node.error, context.branches, context.busy]);
    if (key === this.#footKey) return;
    this.#footKey = key;
    this.#problem.replaceChildren(...this.#problems(node, context));
    const tools = el("div.message-tools");
    if (!runs) {
      tools.append(
        ...branchSwitch(node, context.branches, this.#actions),
        copyButton("Copy answer", () => node.content),
        iconButton("refresh", "Answer again; this answer stays as a branch", () => this.#actions.regenerate(node)),
        iconButton("trash", "Delete this answer and what follows", () => this.#actions.drop(node)),
      );
      for (const button of tools.querySelectorAll(".icon-button:not(.copy)")) button.disabled = context.busy;
    }
    this.#foot.replaceChildren(
      tools,
      el(
        "div.stats",
        {},
        stats.map(([name, text, tip]) => el(`span.stat.${name}`, { title: tip }, text)),
      ),
    );
  }

  #problems(node, { busy }) {
    if (node.state === "stopped") return [el("p.badge", {}, icon("stop"), "Stopped")];
    if (node.state === "done" && node.finish === "length") {
      return [
        el("p.badge", {}, icon("warning"), "Cut off: the token limit or the end of the context window was reached."),
      ];
    }
    if (node.state !== "failed") return [];
    const { title, advice, action } = advise(node.error);
    const helps = {
      key: ["Give a key", () => this.#actions.askKey()],
      new: ["New chat", () => this.#actions.startNew()],
      settings: ["Open settings", () => this.#actions.openSettings(node.error.param)],
    }[action];
    const button = (kind, [label, onclick]) => el(kind, { type: "button", disabled: busy, onclick }, label);
    const again = ["Try again", () => this.#actions.retry(node)];
    const buttons = helps
      ? [button("button.main-button", helps), button("button.quiet-button", again)]
      : [button("button.main-button", again)];
    return [
      el(
        "div.problem",
        { role: "alert" },
        el("h4", {}, icon("warning"), title),
        el("p", {}, advice),
        node.error.status ? el("p.problem-said", {}, `The server said: ${node.error.message}`) : null,
        el("div.problem-buttons", {}, buttons),
      ),
    ];
  }
}

function callCard(call) {
  const summary = el(
    "summary",
    {},
    icon("tool"),
    el("span.call-name", {}, call.name),
    el("span.hint", {}, "tool call"),
    icon("chevron"),
  );
  return el("details.call", { open: true }, summary, jsonElement(call.arguments || "{}"));
}

function branchSwitch(node, branches, { choose }) {
  if (branches.length < 2) return [];
  const at = branches.indexOf(node.id);
  const previous = iconButton("chevronLeft", "Branch before", () => choose(branches[at - 1]));
  const next = iconButton("chevron", "Next branch", () => choose(branches[at + 1]));
  // disabled by position here, by a running answer in the caller
  if (at === 0) previous.classList.add("off");
  if (at === branches.length - 1) next.classList.add("off");
  return [
    el(
      "span.branches",
      { role: "group", "aria-label": `Branch ${at + 1} of ${branches.length}` },
      previous,
      el("span", {}, `${at + 1}/${branches.length}`),
      next,
    ),
  ];
}

function thoughtTitle(ms) {
  return ms > 95 ? `Thought for ${seconds(ms)}` : "Thoughts";
}

const seconds = (ms) => (ms < 9950 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`);

/** [[name, text, tip]] of what is known about an answer's speed and tokens. */
export function statistics({ usage, times, state, model }) {
  const stats = [];
  const count = (number = 0) => number.toLocaleString("en"); // an imported chat may lack some
  if (times?.rate)
    stats.push([
      "rate",
      `${times.rate < 100 ? times.rate.toFixed(1) : count(Math.round(times.rate))} tok/s`,
      "Tokens a second, from the first to the last",
    ]);
  if (usage) {
    stats.push([
      "completion",
      `${count(usage.completion)} tokens`,
      usage.reasoning ? `${count(usage.reasoning)} of them are reasoning` : "Tokens of the answer",
    ]);
  } else if (times?.pieces) {
    stats.push(["completion", `${count(times.pieces)} pieces`, "Pieces of the stream, about one a token"]);
  }
  if (times?.first !== null && times?.first !== undefined)
    stats.push(["first", `first after ${times.first < 1000 ? `${Math.round(times.first)} ms` : seconds(times.first)}`, "From sending to the first token"]);
  if (usage) {
    stats.push(["prompt", `prompt ${count(usage.prompt)}`, "Tokens of the whole prompt"]);
    const share = usage.prompt ? Math.round((usage.cached * 100) / usage.prompt) : 0;
    stats.push([
      "cached",
      `${count(usage.cached)} cached${share ? ` (${share} %)` : ""}`,
      "Tokens of the prompt that were in the cache and needed no computing",
    ]);
  }
  if (model && state !== "running") stats.push(["model", model, "The model that answered"]);
  return stats;
}
