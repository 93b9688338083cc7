// Light colours for code, a line at a time, so that a line that is done is never looked at again.

const words = (text) => new Set(text.split(" "));
const C_LIKE = { line: ["//"], blocks: [["/*", "*/", "comment"]], quotes: `"'` };

const PYTHON = {
  line: ["#"],
  blocks: [
    ['"""', '"""', "string"],
    ["'''", "'''", "string"],
  ],
  quotes: `"'`,
  keywords: words(
    "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield None True False self",
  ),
};
const JS = {
  ...C_LIKE,
  blocks: [...C_LIKE.blocks, ["`", "`", "string"]],
  keywords: words(
    "abstract as async await break case catch class const continue debugger default delete do else enum export extends false finally for from function get if implements import in instanceof interface let new null of private protected public readonly return set static super switch this throw true try type typeof undefined var void while with yield any boolean number string unknown never",
  ),
};
const C = {
  ...C_LIKE,
  keywords: words(
    "alignas auto bool break case catch char class concept const constexpr continue co_await co_return co_yield decltype default delete do double else enum explicit export extern false final float for friend if inline int long mutable namespace new noexcept nullptr operator override private protected public register return short signed sizeof static static_assert struct switch template this throw true try typedef typename union unsigned using virtual void volatile while size_t string vector include define ifdef ifndef endif pragma",
  ),
};
const JAVA = {
  ...C_LIKE,
  blocks: [['"""', '"""', "string"], ...C_LIKE.blocks],
  keywords: words(
    "abstract as assert base bool boolean break byte case catch char class companion const continue data default do double else enum extends false final finally float for foreach fun func get guard if implements import in init instanceof int interface internal is let long namespace native new null object out override package private protected public readonly record ref return sealed set short static string struct super switch synchronized this throw throws transient true try using val var virtual void volatile when where while yield nil self",
  ),
};
const GO = {
  ...C_LIKE,
  blocks: [...C_LIKE.blocks, ["`", "`", "string"]],
  keywords: words(
    "any bool break byte case chan const continue default defer else error fallthrough false float64 for func go goto if import int int64 interface iota map nil package range return rune select string struct switch true type var",
  ),
};
const RUST = {
  ...C_LIKE,
  quotes: '"',
  keywords: words(
    "as async await bool box break const continue crate dyn else enum extern f32 f64 false fn for i32 i64 if impl in let loop match mod move mut pub ref return self Self static str String struct super trait true type u8 u32 u64 unsafe use usize Vec where while Some None Ok Err",
  ),
};
const SHELL = {
  line: ["#"],
  blocks: [],
  quotes: `"'`,
  variables: true,
  keywords: words(
    "if then else elif fi for while until do done case esac in function select time return exit export local readonly declare set unset shift source alias cd echo sudo eval exec trap",
  ),
};
const SQL = {
  line: ["--"],
  blocks: [["/*", "*/", "comment"]],
  quotes: `'"`,
  foldCase: true,
  keywords: words(
    "add all alter and as asc begin between by case cast check column commit constraint create cross database default delete desc distinct drop else end exists foreign from full group having if in index inner insert into is join key left like limit not null offset on or order outer primary references right rollback select set table then union unique update using values view when where with integer int text varchar boolean date timestamp",
  ),
};
const RUBY = {
  line: ["#"],
  blocks: [],
  quotes: `"'`,
  keywords: words(
    "alias and begin break case class def do else elsif end ensure false for if in module next nil not or raise redo require rescue retry return self super then true undef unless until when while yield attr_accessor puts",
  ),
};
const LUA = {
  line: ["--"],
  blocks: [],
  quotes: `"'`,
  keywords: words(
    "and break do else elseif end false for function goto if in local nil not or repeat return then true until while",
  ),
};
const DATA = { line: ["#"], blocks: [], quotes: `"'`, keys: true, keywords: words("true false null yes no on off") };
const JSON_LIKE = { line: ["//"], blocks: [], quotes: '"', keys: true, keywords: words("true false null") };
const CSS = {
  line: [],
  blocks: [["/*", "*/", "comment"]],
  quotes: `"'`,
  keys: true,
  dashes: true,
  keywords: words("important media import supports keyframes font-face layer container root"),
};
const MARKUP = { markup: true, line: [], blocks: [["<!--", "-->", "comment"]], quotes: `"'`, keywords: new Set() };
const DIFF = { diff: true };

const LANGUAGES = new Map(
  Object.entries({
    python: PYTHON,
    py: PYTHON,
    python3: PYTHON,
    pycon: PYTHON,
    javascript: JS,
    js: JS,
    jsx: JS,
    mjs: JS,
    typescript: JS,
    ts: JS,
    tsx: JS,
    c: C,
    h: C,
    cpp: C,
    "c++": C,
    cc: C,
    hpp: C,
    cuda: C,
    glsl: C,
    objc: C,
    java: JAVA,
    kotlin: JAVA,
    kt: JAVA,
    csharp: JAVA,
    cs: JAVA,
    "c#": JAVA,
    swift: JAVA,
    scala: JAVA,
    dart: JAVA,
    php: JAVA,
    go: GO,
    golang: GO,
    rust: RUST,
    rs: RUST,
    ruby: RUBY,
    rb: RUBY,
    lua: LUA,
    sql: SQL,
    bash: SHELL,
    sh: SHELL,
    shell: SHELL,
    zsh: SHELL,
    console: SHELL,
    dockerfile: SHELL,
    makefile: SHELL,
    powershell: SHELL,
    json: JSON_LIKE,
    jsonc: JSON_LIKE,
    json5: JSON_LIKE,
    yaml: DATA,
    yml: DATA,
    toml: DATA,
    ini: DATA,
    css: CSS,
    scss: CSS,
    html: MARKUP,
    xml: MARKUP,
    svg: MARKUP,
    vue: MARKUP,
    diff: DIFF,
    patch: DIFF,
  }),
);

/** Whether there are colours for a language. */
export function knows(lang) {
  return LANGUAGES.has(lang);
}

/**
 * The pieces of a line: [[kind, text]]; kind is "" for plain text. `open` is what an earlier line left open: null at
 * the beginning, then the value that the line before returned.
 */
export function highlightLine(lang, line, open = null) {
  const language = LANGUAGES.get(lang);
  if (!language) return { pieces: [["", line]], open: null };
  if (language.diff) return { pieces: [[diffKind(line), line]], open: null };
  return new LineReader(language, line, open).read();
}

function diffKind(line) {
  if (/^(\+\+\+|---|diff |index )/.test(line)) return "comment";
  return line[0] === "+" ? "added" : line[0] === "-" ? "removed" : line.startsWith("@@") ? "keyword" : "";
}

class LineReader {
  #language;
  #line;
  #at = 0;
  #open;
  #pieces = [];

  constructor(language, line, open) {
    this.#language = language;
    this.#line = line;
    this.#open = open;
  }

  read() {
    while (this.#at < this.#line.length) {
      if (this.#open) this.#inside();
      else if (!this.#starts()) this.#token();
    }
    return { pieces: this.#pieces, open: this.#open };
  }

  #push(kind, length) {
    const text = this.#line.slice(this.#at, this.#at + length);
    const last = this.#pieces.at(-1);
    if (last?.[0] === kind) last[1] += text;
    else this.#pieces.push([kind, text]);
    this.#at += length;
  }

  /** Goes on in a comment or string that an earlier line or place began. */
  #inside() {
    const { close, kind } = this.#open;
    const end = this.#line.indexOf(close, this.#at);
    this.#push(kind, (end < 0 ? this.#line.length : end + close.length) - this.#at);
    if (end >= 0) this.#open = null;
  }

  #starts() {
    const { line, blocks, quotes } = this.#language;
    const here = (text) => this.#line.startsWith(text, this.#at);
    if (line.some(here) && this.#commentMayStart()) {
      this.#push("comment", this.#line.length - this.#at);
      return true;
    }
    const block = blocks.find(([open]) => here(open));
    if (block) {
      const [open, close, kind] = block;
      this.#push(kind, open.length);
      this.#open = { close, kind };
      return true;
    }
    if (!quotes.includes(this.#line[this.#at])) return false;
    this.#quoted();
    return true;
  }

  /** In shells and data a # inside of a word is no comment. */
  #commentMayStart() {
    return (
      this.#line[this.#at] !== "#" ||
      this.#at === 0 ||
      /[\s;(){}[\],]/.test(this.#line[this.#at - 1]) ||
      this.#language === PYTHON
    );
  }

  #quoted() {
    const quote = this.#line[this.#at];
    let end = this.#at + 1;
    while (end < this.#line.length && this.#line[end] !== quote) end += this.#line[end] === "\\" ? 2 : 1;
    const length = Math.min(end + 1, this.#line.length) - this.#at;
    const isKey = this.#language.keys && /^\s*:/.test(this.#line.slice(this.#at + length));
    this.#push(isKey ? "name" : "string", length);
  }

  #token() {
    const rest = this.#line.slice(this.#at, this.#at + 256);
    const { keywords, variables, foldCase, keys, markup, dashes } = this.#language;
    const tag = markup && /^<\/?[\w:-]+|^\/?>/.exec(rest);
    if (tag) return this.#push("keyword", tag[0].length);
    const number = /^(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)[a-zA-Z%]*/.exec(rest);
    if (number) return this.#push("number", number[0].length);
    const variable = variables && /^\$(?:\w+|\{[^}]*\})/.exec(rest);
    if (variable) return this.#push("name", variable[0].length);
    const word = (dashes || markup || keys ? /^[\p{L}_@][\p{L}\p{N}_-]*/u : /^[\p{L}_$@][\p{L}\p{N}_$]*/u).exec(rest);
    if (!word) return this.#push("", 1);
    const after = rest.slice(word[0].length);
    const plain = (foldCase ? word[0].toLowerCase() : word[0]).replace(/^@/, "");
    if (keywords.has(plain)) return this.#push("keyword", word[0].length);
    if (keys && /^\s*[:=]/.test(after)) return this.#push("name", word[0].length);
    if (markup && after.startsWith("=")) return this.#push("name", word[0].length);
    return this.#push(!keys && after.startsWith("(") ? "call" : "", word[0].length);
  }
}
