import assert from "node:assert/strict";
import test from "node:test";

import { highlightLine, knows } from "./highlight.js";

const kinds = (lang, line) => highlightLine(lang, line).pieces.filter(([kind]) => kind);

function whole(lang, text) {
  let open = null;
  return text.split("\n").map((line) => {
    const read = highlightLine(lang, line, open);
    open = read.open;
    return read.pieces;
  });
}

test("words, calls, strings, numbers and comments", () => {
  assert.deepEqual(kinds("python", 'def f(x): return "a\\"b" + 1.5e3  # done'), [
    ["keyword", "def"],
    ["call", "f"],
    ["keyword", "return"],
    ["string", '"a\\"b"'],
    ["number", "1.5e3"],
    ["comment", "# done"],
  ]);
  assert.deepEqual(kinds("json", '{"a": "b", "c": [true, 0]}'), [
    ["name", '"a"'],
    ["string", '"b"'],
    ["name", '"c"'],
    ["keyword", "true"],
    ["number", "0"],
  ]);
  assert.deepEqual(kinds("bash", 'echo "$HOME" $x # hi'), [
    ["keyword", "echo"],
    ["string", '"$HOME"'],
    ["name", "$x"],
    ["comment", "# hi"],
  ]);
  assert.deepEqual(kinds("diff", "+new"), [["added", "+new"]]);
  assert.deepEqual(kinds("sql", "SELECT x FROM t -- all"), [
    ["keyword", "SELECT"],
    ["keyword", "FROM"],
    ["comment", "-- all"],
  ]);
});

test("comments and strings go on over lines", () => {
  const lines = whole("c", "int a; /* one\ntwo */ int b;");
  assert.deepEqual(lines[1], [
    ["comment", "two */"],
    ["", " "],
    ["keyword", "int"],
    ["", " b;"],
  ]);
  assert.equal(whole("python", '"""a\nb"""\nc')[2][0][0], "");
});

test("nothing of a text is lost or added, whatever the language", () => {
  const text = 'a "b\\\n\'c` /* <x y="1"> # $z {k: 0x1F} -- // é😀 """ \t}\n*/ <!-- --> +1';
  for (const lang of [
    "python",
    "js",
    "c",
    "java",
    "go",
    "rust",
    "bash",
    "sql",
    "ruby",
    "lua",
    "yaml",
    "json",
    "css",
    "html",
    "diff",
    "nosuch",
    "",
  ]) {
    const back = whole(lang, text)
      .map((pieces) => pieces.map(([, piece]) => piece).join(""))
      .join("\n");
    assert.equal(back, text, lang);
  }
  assert.ok(knows("ts") && !knows("nosuch"));
});
