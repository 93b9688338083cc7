// Markdown to a tree of blocks. Plain data comes out, never markup; view code makes elements of it.
//
// Blocks: {type: "heading", level, inline} {type: "paragraph", inline} {type: "code", lang, text, closed}
// {type: "quote", blocks} {type: "list", ordered, start, items: [{checked, blocks}]}
// {type: "table", align, head, rows} {type: "rule"}. `line` is where a block of the top begins.

import { parseInline } from "./inline.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const CODE = /^(?: {4}|\t)/;
const UNDERLINE = /^ {0,3}(=+|-{2,})[ \t]*$/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const MAX_DEPTH = 16;

/** The blocks of a text. */
export function parse(text) {
  return new BlockReader(text.split(/\r\n|\r|\n/), 0).read();
}

/**
 * A text that grows. `set` parses only what may have changed: the last two blocks, since a line that is not yet whole
 * can turn out to belong to the block before.
 */
export class GrowingText {
  blocks = [];
  #text = "";

  /** Takes the whole text; returns how many blocks at the front are those of before. */
  set(text) {
    const grows = text.startsWith(this.#text);
    const keep = grows ? Math.max(this.blocks.length - 2, 0) : 0;
    const from = keep < this.blocks.length && grows ? this.blocks[keep].line : 0;
    this.#text = text;
    const lines = text.split(/\r\n|\r|\n/);
    this.blocks = [...this.blocks.slice(0, keep), ...new BlockReader(lines, 0, from).read()];
    return keep;
  }
}

class BlockReader {
  #lines;
  #depth;
  #at;
  #blocks = [];

  constructor(lines, depth, from = 0) {
    this.#lines = lines;
    this.#depth = depth;
    this.#at = from;
  }

  read() {
    while (this.#at < this.#lines.length) {
      const line = this.#at;
      const block = this.#line().trim() ? this.#next() : null;
      if (block) this.#blocks.push({ ...block, line });
      else this.#at += 1;
    }
    return this.#blocks;
  }

  #line(ahead = 0) {
    return this.#lines[this.#at + ahead];
  }

  #next() {
    const line = this.#line();
    const nests = this.#depth < MAX_DEPTH;
    if (isFence(line)) return this.#fence();
    if (CODE.test(line)) return this.#indented();
    if (HEADING.test(line)) return this.#heading();
    if (RULE.test(line)) return this.#rule();
    if (nests && QUOTE.test(line)) return this.#quote();
    if (nests && ITEM.test(line)) return this.#list();
    if (this.#tableStarts(0)) return this.#table();
    return this.#paragraph();
  }

  #fence() {
    const [, indent, mark, info] = FENCE.exec(this.#line());
    const end = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`);
    const body = [];
    let closed = false;
    for (this.#at += 1; this.#at < this.#lines.length && !closed; this.#at += 1) {
      closed = end.test(this.#line());
      if (!closed) body.push(this.#line().replace(new RegExp(`^ {0,${indent.length}}`), ""));
    }
    return {
      type: "code",
      lang: info
        .trim()
        .split(/[\s{,]/)[0]
        .toLowerCase(),
      text: body.join("\n"),
      closed,
    };
  }

  #indented() {
    const body = [];
    for (; this.#at < this.#lines.length && (CODE.test(this.#line()) || !this.#line().trim()); this.#at += 1) {
      body.push(this.#line().replace(CODE, ""));
    }
    return { type: "code", lang: "", text: body.join("\n").trimEnd(), closed: true };
  }

  #heading() {
    const [, marks, text = ""] = HEADING.exec(this.#line());
    this.#at += 1;
    return { type: "heading", level: marks.length, inline: parseInline(text.trim().replace(/(^|[ \t]+)#+$/, "")) };
  }

  #rule() {
    this.#at += 1;
    return { type: "rule" };
  }

  #quote() {
    const inner = [];
    for (; this.#at < this.#lines.length; this.#at += 1) {
      const line = this.#line();
      const goesOn = inner.length && inner.at(-1).trim() && line.trim() && !startsBlock(line);
      if (!QUOTE.test(line) && !goesOn) break;
      inner.push(line.replace(QUOTE, ""));
    }
    return { type: "quote", blocks: new BlockReader(inner, this.#depth + 1).read() };
  }

  #list() {
    const [, indent, mark] = ITEM.exec(this.#line());
    const kind = mark.at(-1);
    const ordered = /\d/.test(mark);
    const items = [];
    while (this.#at < this.#lines.length) {
      const item = ITEM.exec(this.#line());
      if (!item || item[2].at(-1) !== kind || item[1].length > indent.length + 1 || RULE.test(this.#line())) break;
      items.push(this.#item(item));
    }
    return { type: "list", ordered, start: ordered ? Number.parseInt(mark, 10) : 1, items };
  }

  /** One item: its lines without their indent. Models indent nested lists by less than the text of the item. */
  #item([, indent, mark, space = " ", first = ""]) {
    const width = indent.length + mark.length + (space.length > 4 ? 1 : space.length);
    const lines = [space.length > 4 ? space.slice(1) + first : first];
    for (this.#at += 1; this.#at < this.#lines.length; this.#at += 1) {
      const line = this.#line();
      const depth = line.search(/\S/);
      if (depth < 0) {
        lines.push("");
        continue;
      }
      const nested = depth >= width || (depth > indent.length + 1 && ITEM.test(line));
      const goesOn = lines.at(-1).trim() && !startsBlock(line) && !ITEM.test(line);
      if (!nested && !goesOn) break;
      lines.push(line.slice(Math.min(depth, width)));
    }
    const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
    if (task) lines[0] = lines[0].slice(task[0].length);
    return { checked: task ? task[1] !== " " : null, blocks: new BlockReader(lines, this.#depth + 1).read() };
  }

  #tableStarts(ahead) {
    const divider = this.#line(ahead + 1);
    const head = this.#line(ahead);
    return Boolean(
      divider?.includes("-") &&
      head.includes("|") &&
      DIVIDER.test(divider) &&
      cells(head).length === cells(divider).length,
    );
  }

  #table() {
    const head = cells(this.#line());
    const align = cells(this.#line(1)).map(alignment);
    const rows = [];
    for (this.#at += 2; this.#at < this.#lines.length; this.#at += 1) {
      const line = this.#line();
      if (!line.trim() || startsBlock(line)) break;
      const row = cells(line);
      rows.push(head.map((_, index) => parseInline(row[index] ?? "")));
    }
    return { type: "table", align, head: head.map(parseInline), rows };
  }

  #paragraph() {
    const lines = [this.#line()];
    for (this.#at += 1; this.#at < this.#lines.length; this.#at += 1) {
      const line = this.#line();
      const underline = UNDERLINE.exec(line);
      if (underline) {
        this.#at += 1;
        return { type: "heading", level: underline[1][0] === "=" ? 1 : 2, inline: parseInline(joined(lines)) };
      }
      if (!line.trim() || startsBlock(line) || interrupts(line) || this.#tableStarts(0)) break;
      lines.push(line);
    }
    return { type: "paragraph", inline: parseInline(joined(lines)) };
  }
}

const isFence = (line) => {
  const fence = FENCE.exec(line);
  return fence !== null && !(fence[2][0] === "`" && fence[3].includes("`"));
};
const startsBlock = (line) => isFence(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
/** Whether a line begins a list inside of a paragraph: numbers only with 1, so that a year at a line's start does not. */
const interrupts = (line) => {
  const item = ITEM.exec(line);
  return Boolean(
    item?.[4]?.trim() && item[1].length < 4 && (!/\d/.test(item[2]) || Number.parseInt(item[2], 10) === 1),
  );
};
const joined = (lines) =>
  lines
    .map((line) => line.replace(/^[ \t]+/, ""))
    .join("\n")
    .replace(/[ \t]+$/, "");

/** The cells of a row; a bar behind a backslash or in a code span does not part them. */
function cells(line) {
  const parts = [""];
  const pieces = line.trim().match(/\\.|`+[^`]*`+|[^\\`]|[\s\S]/g) ?? [];
  for (const piece of pieces) {
    if (piece === "|") parts.push("");
    else parts[parts.length - 1] += piece === "\\|" ? "|" : piece;
  }
  if (!parts[0].trim()) parts.shift();
  if (parts.length && !parts.at(-1).trim()) parts.pop();
  return parts.map((part) => part.trim());
}

function alignment(divider) {
  const [left, right] = [divider.startsWith(":"), divider.endsWith(":")];
  return left && right ? "center" : right ? "right" : left ? "left" : null;
}
