// Shows Markdown as elements, and changes only what is new while a text grows.

import { copyButton, el } from "./dom.js";
import { highlightLine } from "./highlight.js";
import { plainText } from "./inline.js";
import { GrowingText } from "./markdown.js";

/** The text of an answer in `element`; call `update` with the whole text as often as it grows. */
export class MarkdownView {
  #growing = new GrowingText();
  #views = [];

  constructor(element) {
    this.element = element;
  }

  update(text) {
    const kept = this.#growing.set(text);
    const { blocks } = this.#growing;
    for (let index = kept; index < blocks.length; index += 1) this.#show(index, blocks[index]);
    for (const view of this.#views.splice(blocks.length)) view.element.remove();
  }

  #show(index, block) {
    const view = this.#views[index];
    const key = block.type === "code" ? `code ${block.lang} ${block.line}` : JSON.stringify(block);
    if (view?.key === key) {
      view.code?.update(block.text);
      return;
    }
    const code = block.type === "code" ? new CodeView(block) : null;
    const element = code ? code.element : blockElement(block);
    if (view) view.element.replaceWith(element);
    else this.element.append(element);
    this.#views[index] = { key, element, code };
  }
}

/** A block of code with its language and a button to copy it. Lines that are whole are coloured once. */
class CodeView {
  #lang;
  #text = "";
  #code = el("code");
  #lines = [];

  constructor({ lang, text }) {
    this.#lang = lang;
    const head = el(
      "div.code-head",
      {},
      el("span", {}, lang || "text"),
      copyButton("Copy code", () => this.#text),
    );
    this.element = el("div.code", {}, head, el("pre", { tabIndex: 0 }, this.#code));
    this.update(text);
  }

  update(text) {
    if (text === this.#text && this.#lines.length) return;
    const lines = text.split("\n");
    let from = 0;
    while (from < this.#lines.length - 1 && this.#lines[from].text === lines[from]) from += 1;
    for (const { element } of this.#lines.splice(from)) element.remove();
    for (const line of lines.slice(from)) this.#add(line);
    this.#text = text;
  }

  #add(line) {
    const { pieces, open } = highlightLine(this.#lang, line, this.#lines.at(-1)?.open ?? null);
    const element = el(
      "span.line",
      {},
      pieces.map(([kind, text]) => (kind ? el(`span.hl-${kind}`, {}, text) : text)),
      "\n",
    );
    this.#code.append(element);
    this.#lines.push({ text: line, element, open });
  }
}

/** A JSON text, laid out and coloured; a text that is no JSON as it is. */
export function jsonElement(text) {
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Not whole yet, or never was: shown as it came.
  }
  return new CodeView({ lang: "json", text: shown }).element.querySelector("pre");
}

function blockElement(block) {
  switch (block.type) {
    case "heading":
      return el(`h${block.level}`, {}, inlineNodes(block.inline));
    case "paragraph":
      return el("p", {}, inlineNodes(block.inline));
    case "code":
      return new CodeView(block).element;
    case "quote":
      return el("blockquote", {}, block.blocks.map(blockElement));
    case "list":
      return listElement(block);
    case "table":
      return tableElement(block);
    default:
      return el("hr");
  }
}

function listElement({ ordered, start, items }) {
  const list = el(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {});
  for (const { checked, blocks } of items) {
    const [first, ...others] = blocks;
    // The only text of an item, or the one before a nested list, needs no space around it.
    const tight = first?.type === "paragraph" && others.every((block) => block.type === "list");
    const lead = tight ? inlineNodes(first.inline) : first ? [blockElement(first)] : [];
    const box =
      checked === null
        ? null
        : el("input", { type: "checkbox", checked, disabled: true, "aria-label": checked ? "done" : "to do" });
    list.append(el(checked === null ? "li" : "li.task", {}, box, lead, others.map(blockElement)));
  }
  return list;
}

function tableElement({ align, head, rows }) {
  const cell = (tag) => (inline, index) => el(align[index] ? `${tag}.${align[index]}` : tag, {}, inlineNodes(inline));
  const table = el(
    "table",
    {},
    el("thead", {}, el("tr", {}, head.map(cell("th")))),
    el(
      "tbody",
      {},
      rows.map((row) => el("tr", {}, row.map(cell("td")))),
    ),
  );
  return el("div.table", { tabIndex: 0 }, table);
}

function inlineNodes(nodes) {
  return nodes.map((node) => {
    if (typeof node === "string") return node;
    if (node.type === "break") return el("br");
    if (node.type === "code") return el("code", {}, node.text);
    if (node.type !== "link") return el(node.type, {}, inlineNodes(node.children));
    const shown = node.image ? [`Image: ${plainText(node.children) || node.href}`] : inlineNodes(node.children);
    return el("a", { href: node.href, target: "_blank", rel: "noopener noreferrer nofollow", title: node.href }, shown);
  });
}
