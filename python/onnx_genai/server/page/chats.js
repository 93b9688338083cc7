// Chats as trees of messages. An edited or regenerated message is a branch beside the old one, which stays.

/** A fresh id; crypto.randomUUID is missing on pages that did not come over a safe connection. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** An empty chat. `nodes` holds messages by id; `root` stands before the first one. */
export function newChat({ system = "", tools = "" } = {}) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    created: now,
    updated: now,
    system,
    tools,
    nodes: {},
    root: { children: [], chosen: null },
  };
}

const above = (chat, id) => (id === null ? chat.root : chat.nodes[id]);

/** Puts a message under the one with id `parent` (null: at the beginning), on a branch of its own, and goes there. */
export function addMessage(chat, parent, message) {
  const node = { id: newId(), parent, children: [], chosen: null, at: Date.now(), ...message };
  chat.nodes[node.id] = node;
  above(chat, parent).children.push(node.id);
  choose(chat, node.id);
  if (!chat.title && message.role === "user") chat.title = titleOf(message.content);
  return node;
}

/** The messages that are shown: from the first one along the chosen branches. */
export function pathOf(chat) {
  const path = [];
  for (let id = chat.root.chosen; id !== null; id = chat.nodes[id].chosen) path.push(chat.nodes[id]);
  return path;
}

/** The messages from the first one to that of the id, along the branch that it is on. */
export function pathTo(chat, id) {
  const path = [];
  for (let at = id; at !== null; at = chat.nodes[at].parent) path.unshift(chat.nodes[at]);
  return path;
}

/** Ids of the branches at a message, itself among them, oldest first. */
export function branchesAt(chat, id) {
  return above(chat, chat.nodes[id].parent).children;
}

/** Goes to the branch of a message; below it the branch that was shown last is shown again. */
export function choose(chat, id) {
  above(chat, chat.nodes[id].parent).chosen = id;
}

/** Drops a message with all that follows it; the branch beside it is shown. */
export function dropBranch(chat, id) {
  const parent = above(chat, chat.nodes[id].parent);
  const at = parent.children.indexOf(id);
  parent.children.splice(at, 1);
  parent.chosen = parent.children[Math.min(at, parent.children.length - 1)] ?? null;
  const doomed = [id];
  while (doomed.length) {
    const next = doomed.pop();
    doomed.push(...chat.nodes[next].children);
    delete chat.nodes[next];
  }
}

/** The messages of a request that asks for an answer to the message with id `last`. */
export function requestMessages(chat, last) {
  const messages = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  for (const node of pathTo(chat, last)) {
    if (node.role === "user") messages.push({ role: "user", content: node.content });
    if (node.role === "tool") messages.push({ role: "tool", tool_call_id: node.call, content: node.content });
    if (node.role === "assistant" && (node.content || node.calls?.length)) messages.push(assistantMessage(node));
  }
  return messages;
}

function assistantMessage(node) {
  const message = { role: "assistant", content: node.content || null };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  if (node.calls?.length) {
    message.tool_calls = node.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}

/** Calls of the message with the id that no tool message below it, on the shown branch, answers. */
export function openCalls(chat, id) {
  const path = pathOf(chat);
  const at = path.findIndex((node) => node.id === id);
  const after = path.slice(at + 1);
  const end = after.findIndex((node) => node.role !== "tool");
  const given = new Set((end < 0 ? after : after.slice(0, end)).map((node) => node.call));
  return (chat.nodes[id].calls ?? []).filter((call) => !given.has(call.id));
}

/** A short name for a chat: the beginning of its first message. */
export function titleOf(text) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

const TEXTS = ["content", "reasoning", "model", "finish", "state", "call", "name"];

/** A chat made of what another one, from a file or an older page, holds. Null if it is no chat. */
export function copyChat(given) {
  if (typeof given?.root !== "object" || typeof given.nodes !== "object" || !given.root || !given.nodes) return null;
  const chat = newChat({ system: text(given.system), tools: text(given.tools) });
  chat.title = text(given.title).slice(0, 200);
  for (const key of ["created", "updated"]) if (Number.isFinite(given[key])) chat[key] = given[key];
  copyBelow(chat, given, null, given.root);
  return chat;
}

function copyBelow(chat, given, rootId, root) {
  const seen = new Set();
  const waiting = [[rootId, root]];
  while (waiting.length) {
    const [parent, source] = waiting.shift();
    let chosen = null;
    for (const id of Array.isArray(source.children) ? source.children : []) {
      const node = Object.hasOwn(given.nodes, id) ? given.nodes[id] : null;
      if (seen.has(id) || !["user", "assistant", "tool"].includes(node?.role)) continue;
      seen.add(id);
      const copy = addMessage(chat, parent, copyNode(node));
      if (id === source.chosen) chosen = copy.id;
      waiting.push([copy.id, node]);
    }
    if (chosen !== null) choose(chat, chosen);
  }
}

function copyNode(node) {
  const copy = { role: node.role, content: text(node.content), at: Number.isFinite(node.at) ? node.at : Date.now() };
  for (const key of TEXTS) if (typeof node[key] === "string") copy[key] = node[key];
  if (copy.state === "running") copy.state = "stopped";
  if (Array.isArray(node.calls)) {
    copy.calls = node.calls.map((call) => ({
      id: text(call?.id),
      name: text(call?.name),
      arguments: text(call?.arguments),
    }));
  }
  for (const key of ["usage", "times"]) if (node[key] && typeof node[key] === "object") copy[key] = numbers(node[key]);
  if (node.error && typeof node.error === "object") {
    const { status, code, param, message } = node.error;
    copy.error = { status: Number(status) || 0, code: text(code), param: text(param), message: text(message) };
  }
  return copy;
}

const text = (value) => (typeof value === "string" ? value : "");
const numbers = (given) => Object.fromEntries(Object.entries(given).filter(([, value]) => Number.isFinite(value)));
