import assert from "node:assert/strict";
import test from "node:test";

import { parseInline, plainText, safeAddress } from "./inline.js";
import { GrowingText, parse } from "./markdown.js";

const bare = (blocks) => JSON.parse(JSON.stringify(blocks, (key, value) => (key === "line" ? undefined : value)));
const same = (text, blocks) => assert.deepEqual(bare(parse(text)), blocks);
const paragraph = (...inline) => ({ type: "paragraph", inline });
const item = (...blocks) => ({ checked: null, blocks });

const DOCUMENT = [
  "# Title *here*",
  "",
  "Text with **bold**, `code`",
  "and a second line.",
  "",
  "1. one",
  "   - inner",
  "   - more",
  "2. two",
  "",
  "| a | b |",
  "|:--|--:|",
  "| 1 | `x|y` |",
  "",
  "```py",
  "# no heading",
  "x = '''",
  "```",
  "> quoted",
  "> - item",
  "lazy",
  "",
  "Under",
  "=====",
  "- [x] done",
  "- [ ] open",
  "",
  "***",
  "    indented",
  "[l](https://a.b/c) <https://d.e> https://f.g/h.",
  "~~~",
  "open end",
].join("\n");

test("headings of both kinds", () => {
  same("## Two ##\nThree\n---", [
    { type: "heading", level: 2, inline: ["Two"] },
    { type: "heading", level: 2, inline: ["Three"] },
  ]);
  same("#no heading", [paragraph("#no heading")]);
});

test("lists nest by their indent, also by less than the text of the item", () => {
  const nested = { type: "list", ordered: false, start: 1, items: [item(paragraph("b"))] };
  same("3. a\n   - b\n4. c", [
    { type: "list", ordered: true, start: 3, items: [item(paragraph("a"), nested), item(paragraph("c"))] },
  ]);
  same("1. a\n  - b", [{ type: "list", ordered: true, start: 1, items: [item(paragraph("a"), nested)] }]);
});

test("tasks are marked, and a number with a dot inside of a text begins no list", () => {
  assert.deepEqual(
    parse("- [x] a\n- [ ] b")[0].items.map(({ checked }) => checked),
    [true, false],
  );
  assert.equal(parse("It was in\n1984. Then").length, 1);
});

test("code keeps its text as it is, and an open fence goes to the end", () => {
  same("```Python title\n  <b>*x*</b>\n\n```\nafter", [
    { type: "code", lang: "python", text: "  <b>*x*</b>\n", closed: true },
    paragraph("after"),
  ]);
  same("~~~\na\n```\nb", [{ type: "code", lang: "", text: "a\n```\nb", closed: false }]);
});

test("tables have as many cells as their head", () => {
  const [table] = parse("a | b\n--|:-:\n1\n2 | 3 | 4\n");
  assert.deepEqual(table.align, [null, "center"]);
  assert.deepEqual(table.rows, [
    [["1"], []],
    [["2"], ["3"]],
  ]);
  assert.equal(parse("a | b\n---\n")[0].type, "heading");
});

test("emphasis as CommonMark has it", () => {
  const em = (...children) => ({ type: "em", children });
  const strong = (...children) => ({ type: "strong", children });
  assert.deepEqual(parseInline("*a* __b__ ***c***"), [em("a"), " ", strong("b"), " ", em(strong("c"))]);
  assert.deepEqual(parseInline("2 * 3 * 4 and snake_case_name"), ["2 * 3 * 4 and snake_case_name"]);
  assert.deepEqual(parseInline("**foo*"), ["*", em("foo")]);
  assert.deepEqual(parseInline("*foo**bar**baz*"), [em("foo", strong("bar"), "baz")]);
  assert.deepEqual(parseInline("*foo**bar*"), [em("foo**bar")]);
  assert.deepEqual(parseInline("****._***_)x"), ["*", em(strong("._")), "_)x"]);
  assert.deepEqual(parseInline("~~x~~ ~y~ \\*z\\*"), [{ type: "del", children: ["x"] }, " ~y~ *z*"]);
  assert.deepEqual(parseInline("`` a`b `` `open"), [{ type: "code", text: "a`b" }, " `open"]);
});

test("links lead to http, https and mailto only", () => {
  const href = (text) => parseInline(text).find((node) => node.type === "link")?.href;
  assert.equal(href('[a *b*](https://x.y/z_(1) "title")'), "https://x.y/z_(1)");
  assert.equal(href("see (www.x.y/z)."), "https://www.x.y/z");
  assert.equal(href("<me@x.y>"), "mailto:me@x.y");
  const bad = [
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](java\tscript:alert(1))",
    "[a](data:text/html,<script>)",
    "[a](vbscript:x)",
    "[a](file:///etc/passwd)",
    "[a](//evil.example)",
    "[a](/v1/models)",
    "<javascript:alert(1)>",
    "[a](\u0001javascript:x)",
    "![a](javascript:x)",
  ];
  for (const text of bad) assert.equal(href(text), undefined, text);
  for (const text of ["javascript:x", "", "http://", "https://a b", "blob:https://x.y/z"])
    assert.equal(safeAddress(text), null, text);
});

test("an image is a link that the reader may follow, and never loaded", () => {
  const [node] = parseInline("![alt *x*](https://x.y/i.png)");
  assert.deepEqual([node.type, node.image, plainText(node.children)], ["link", true, "alt x"]);
});

test("markup is text, and entities are characters", () => {
  assert.deepEqual(parseInline("<img src=x onerror=alert(1)>"), ["<img src=x onerror=alert(1)>"]);
  assert.deepEqual(parseInline("&lt;b&gt; &#x41;&#0;&#99999999; &nosuch;"), ["<b> A\ufffd&#99999999; &nosuch;"]);
});

test("a text that grows gives at every length what the whole text gives", () => {
  const growing = new GrowingText();
  for (let length = 0; length <= DOCUMENT.length; length += 1) {
    const text = DOCUMENT.slice(0, length);
    growing.set(text);
    assert.equal(JSON.stringify(growing.blocks), JSON.stringify(parse(text)), JSON.stringify(text));
  }
});

test("blocks at the front are kept while a text grows, and none when another text comes", () => {
  const growing = new GrowingText();
  growing.set("a\n\nb\n\nc\n\nd");
  assert.equal(growing.set("a\n\nb\n\nc\n\nd e"), 2);
  assert.equal(growing.set("a\n\nB"), 0);
  assert.deepEqual(growing.blocks, parse("a\n\nB"));
});

test("random texts of hard characters never throw and grow as they parse", () => {
  let seed = 7;
  const random = (bound) => (seed = (seed * 48271) % 2147483647) % bound;
  const pieces = [
    "*",
    "**",
    "_",
    "`",
    "```",
    "~~",
    "[",
    "](",
    ")",
    "!",
    "<",
    ">",
    "> ",
    "- ",
    "1. ",
    "|",
    "|-|",
    "\n",
    "\n\n",
    "    ",
    "#",
    " ",
    "a",
    "b c",
    "\\",
    "&amp;",
    "http://x.y",
    "=\n",
    "--\n",
  ];
  for (let round = 0; round < 150; round += 1) {
    const growing = new GrowingText();
    let text = "";
    for (let count = 0; count < 25; count += 1) {
      text += pieces[random(pieces.length)];
      growing.set(text);
      assert.equal(JSON.stringify(growing.blocks), JSON.stringify(parse(text)), JSON.stringify(text));
    }
  }
});

test("hostile texts neither hang nor overflow", () => {
  const pieces = [
    "*",
    "[",
    "`a",
    "*a_b",
    "> ",
    "- ",
    "<a",
    "|-",
    "![",
    "&#",
    "~~a",
    "\\",
    "_*",
    "**a*",
    "[a](",
    "\n> - ",
  ];
  for (const piece of pieces) assert.ok(parse(piece.repeat(5000)).length, piece);
});
