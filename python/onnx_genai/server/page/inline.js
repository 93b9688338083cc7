// What stands inside a line of Markdown, to a tree.
//
// Nodes: a string, or {type: "code", text} {type: "break"} {type: "strong" | "em" | "del", children}
// {type: "link", href, image, children}. Only addresses that `safeAddress` lets through become links.

const PUNCTUATION = /[!-/:-@[-`{-~]/;
const SPACE = /^$|\s/;
const WORD = /[\p{L}\p{N}]/u;
const BARE = /^(?:https?:\/\/|www\.)[^\s<>"`]+/i;
const ENTITY =
  /^&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp|copy|reg|hellip|mdash|ndash|times|deg));/;
const NAMED = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  copy: "©",
  reg: "®",
  hellip: "…",
  mdash: "—",
  ndash: "–",
  times: "×",
  deg: "°",
};
const MAX_TARGET = 4096;

/** The address as it may be opened, or null: only absolute http, https and mailto. */
export function safeAddress(text) {
  let url;
  try {
    url = new URL(text.trim());
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

/** The nodes of a text. */
export function parseInline(text) {
  return new InlineReader(text).read();
}

/** The characters of nodes, without their form. */
export function plainText(nodes) {
  return nodes
    .map((node) =>
      typeof node === "string" ? node : node.type === "break" ? "\n" : (node.text ?? plainText(node.children)),
    )
    .join("");
}

class InlineReader {
  #text;
  #at = 0;
  #out = [];
  #marks = { "*": [], _: [], "~": [] };
  #brackets = [];
  #unclosed = new Set();

  constructor(text) {
    this.#text = text;
  }

  read() {
    while (this.#at < this.#text.length) this.#step();
    return tidy(this.#out);
  }

  #step() {
    const character = this.#text[this.#at];
    const rest = () => this.#text.slice(this.#at, this.#at + MAX_TARGET);
    switch (character) {
      case "\\":
        return this.#escape();
      case "`":
        return this.#code();
      case "*":
      case "_":
      case "~":
        return this.#emphasis(character);
      case "!":
        if (this.#text[this.#at + 1] === "[") return this.#open(2, true);
        break;
      case "[":
        return this.#open(1, false);
      case "]":
        return this.#close();
      case "\n":
        return this.#newline();
      case "<":
        if (this.#angle(/^<([^\s<>]+)>/.exec(rest()))) return undefined;
        break;
      case "&":
        if (this.#entity(ENTITY.exec(rest()))) return undefined;
        break;
      case "h":
      case "H":
      case "w":
      case "W":
        if (!WORD.test(this.#text[this.#at - 1] ?? "") && this.#bare(BARE.exec(rest()))) return undefined;
        break;
    }
    return this.#take(character, 1);
  }

  #take(node, length) {
    this.#out.push(node);
    this.#at += length;
  }

  #escape() {
    const next = this.#text[this.#at + 1] ?? "";
    if (next === "\n") return this.#take({ type: "break" }, 2);
    return PUNCTUATION.test(next) ? this.#take(next, 2) : this.#take("\\", 1);
  }

  #code() {
    const ticks = /^`+/.exec(this.#text.slice(this.#at))[0];
    const from = this.#at + ticks.length;
    const end = this.#unclosed.has(ticks.length) ? -1 : this.#sameTicks(ticks, from);
    if (end < 0) {
      this.#unclosed.add(ticks.length);
      return this.#take(ticks, ticks.length);
    }
    const inner = this.#text.slice(from, end).replace(/\n/g, " ");
    const padded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim();
    return this.#take({ type: "code", text: padded ? inner.slice(1, -1) : inner }, end + ticks.length - this.#at);
  }

  #sameTicks(ticks, from) {
    for (let at = this.#text.indexOf(ticks, from); at >= 0;) {
      let end = at;
      while (this.#text[end] === "`") end += 1;
      if (end - at === ticks.length) return at;
      at = this.#text.indexOf(ticks, end);
    }
    return -1;
  }

  /** A run of one mark. Each mark that can close is matched with the nearest that can open. */
  #emphasis(mark) {
    let end = this.#at;
    while (this.#text[end] === mark) end += 1;
    const before = this.#text[this.#at - 1] ?? "";
    const after = this.#text[end] ?? "";
    const size = end - this.#at;
    let length = size;
    this.#at = end;
    if (mark === "~" && length !== 2) return void this.#out.push(mark.repeat(length));
    const leftFlank =
      !SPACE.test(after) && (!PUNCTUATION.test(after) || SPACE.test(before) || PUNCTUATION.test(before));
    const rightFlank =
      !SPACE.test(before) && (!PUNCTUATION.test(before) || SPACE.test(after) || PUNCTUATION.test(after));
    const inWord = mark === "_" && WORD.test(before) && WORD.test(after);
    const opens = leftFlank && !inWord;
    const closes = rightFlank && !inWord;
    if (closes) length = this.#closeMarks(mark, size, opens);
    if (!length) return undefined;
    if (opens) this.#marks[mark].push({ at: this.#out.length, size, length, both: closes });
    return void this.#out.push(mark.repeat(length));
  }

  #closeMarks(mark, size, both) {
    const stack = this.#marks[mark];
    // CommonMark's rule of three, by which "*a**b*" is one emphasis.
    const fits = (opener) =>
      mark === "~" || !(both || opener.both) || (opener.size + size) % 3 || !(opener.size % 3 || size % 3);
    let length = size;
    while (length) {
      const at = stack.findLastIndex(fits);
      if (at < 0) break;
      stack.length = at + 1;
      const opener = stack[at];
      const used = mark === "~" ? 2 : Math.min(opener.length, length, 2);
      const type = mark === "~" ? "del" : used === 2 ? "strong" : "em";
      const children = tidy(this.#out.splice(opener.at + 1));
      this.#forget(opener.at + 1);
      opener.length -= used;
      length -= used;
      if (opener.length) this.#out[opener.at] = mark.repeat(opener.length);
      else {
        this.#out.pop();
        stack.pop();
      }
      this.#out.push({ type, children });
    }
    return length;
  }

  /** Drops marks and brackets that stand at or behind a place of the output; they stay text. */
  #forget(at) {
    for (const stack of [...Object.values(this.#marks), this.#brackets]) {
      while (stack.length && stack.at(-1).at >= at) stack.pop();
    }
  }

  #open(length, image) {
    this.#brackets.push({ at: this.#out.length, image });
    this.#take(this.#text.slice(this.#at, this.#at + length), length);
  }

  #close() {
    const bracket = this.#brackets.pop();
    const target = bracket && this.#text[this.#at + 1] === "(" ? targetAt(this.#text, this.#at + 2) : null;
    if (!target) return this.#take("]", 1);
    const inner = this.#out.splice(bracket.at);
    this.#forget(bracket.at);
    const children = tidy(inner.slice(1));
    const href = safeAddress(target.text);
    this.#at = target.end;
    if (href)
      return void this.#out.push({ type: "link", href, image: bracket.image, children: withoutLinks(children) });
    // What may not be opened is shown for what it is.
    return void this.#out.push(...children, target.text ? ` (${target.text})` : "");
  }

  #newline() {
    while (typeof this.#out.at(-1) === "string" && /^ +$/.test(this.#out.at(-1))) this.#out.pop();
    this.#take({ type: "break" }, 1);
  }

  #angle(found) {
    if (!found) return false;
    const address = found[1].includes("@") && !found[1].includes(":") ? `mailto:${found[1]}` : found[1];
    const href = safeAddress(address);
    if (href) this.#take({ type: "link", href, image: false, children: [found[1]] }, found[0].length);
    return Boolean(href);
  }

  #bare(found) {
    if (!found || this.#brackets.length) return false;
    let shown = found[0].replace(/[?!.,:;*_~'"\]]+$/, "");
    while (shown.endsWith(")") && shown.split(")").length > shown.split("(").length) shown = shown.slice(0, -1);
    const href = safeAddress(/^www\./i.test(shown) ? `https://${shown}` : shown);
    if (href) this.#take({ type: "link", href, image: false, children: [shown] }, shown.length);
    return Boolean(href);
  }

  #entity(found) {
    if (!found) return false;
    const point = found[1] ? Number(found[1]) : found[2] ? Number.parseInt(found[2], 16) : null;
    const valid = point === null || (point > 0 && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff));
    const shown = point === null ? NAMED[found[3]] : valid ? String.fromCodePoint(point) : "\ufffd";
    this.#take(shown, found[0].length);
    return true;
  }
}

/** {text, end} of a link's target whose "(" ends before `from`; null if it is none. */
function targetAt(text, from) {
  const rest = text.slice(from, from + MAX_TARGET);
  const angled = /^\s*<([^<>\n]*)>\s*(?:"[^"]*"|'[^']*')?\s*\)/.exec(rest);
  if (angled) return { text: angled[1], end: from + angled[0].length };
  const start = rest.search(/\S|$/);
  let depth = 0;
  let at = start;
  for (; at < rest.length && !/\s/.test(rest[at]); at += 1) {
    if (rest[at] === "(") depth += 1;
    if (rest[at] === ")" && depth-- === 0) break;
  }
  const tail = /^\s*(?:"[^"]*"|'[^']*'|\([^()]*\))?\s*\)/.exec(rest.slice(at));
  return tail ? { text: rest.slice(start, at), end: from + at + tail[0].length } : null;
}

function withoutLinks(nodes) {
  return nodes.flatMap((node) => {
    if (typeof node === "string" || !node.children) return [node];
    return node.type === "link" ? withoutLinks(node.children) : [{ ...node, children: withoutLinks(node.children) }];
  });
}

/** Neighbouring texts as one. */
function tidy(nodes) {
  const out = [];
  for (const node of nodes) {
    if (node === "") continue;
    if (typeof node === "string" && typeof out.at(-1) === "string") out[out.length - 1] += node;
    else out.push(node);
  }
  return out;
}
