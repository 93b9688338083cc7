// Keeps chats, settings and unsent text in the browser's storage.

import { copyChat } from "./chats.js";
import { cleanSettings } from "./settings.js";

const PREFIX = "onnx-genai/";
const CHAT = `${PREFIX}chat/`;
const FORMAT = "onnx-genai-chats";

/** Keeps things until the page is closed, where the browser gives no storage. */
export class ShortMemory {
  #values = new Map();

  get length() {
    return this.#values.size;
  }

  key(index) {
    return [...this.#values.keys()][index] ?? null;
  }

  getItem(key) {
    return this.#values.get(key) ?? null;
  }

  setItem(key, value) {
    this.#values.set(key, String(value));
  }

  removeItem(key) {
    this.#values.delete(key);
  }
}

/** The storage that `open()` gives, or a short memory if the browser refuses it. */
export function storageOf(open) {
  try {
    return open() ?? new ShortMemory();
  } catch {
    return new ShortMemory();
  }
}

/** A file that is no export of chats. */
export class NotAnExport extends Error {}

/** Chats and choices in `storage`, which works like localStorage. */
export class Store {
  #storage;

  /** `onFull()` is called when something could not be kept. */
  constructor(storage, onFull = () => {}) {
    this.#storage = storage;
    this.onFull = onFull;
  }

  /** [{id, title, updated}] of all chats, the last used first. */
  list() {
    return this.#ids()
      .map((id) => this.#read(CHAT + id))
      .filter(Boolean)
      .map(({ id, title, updated }) => ({ id, title, updated }))
      .sort((a, b) => b.updated - a.updated);
  }

  /** The chat with the id, or null. Answers that a closed page left unfinished are marked as stopped. */
  load(id) {
    const chat = this.#read(CHAT + id);
    for (const node of Object.values(chat?.nodes ?? {})) if (node.state === "running") node.state = "stopped";
    return chat;
  }

  save(chat) {
    this.#write(CHAT + chat.id, chat);
  }

  remove(id) {
    this.#storage.removeItem(CHAT + id);
    this.setDraft(id, "");
  }

  /** All chats as a JSON text. */
  exportText() {
    const chats = this.#ids()
      .map((id) => this.load(id))
      .filter(Boolean);
    return JSON.stringify({ format: FORMAT, version: 1, exported: new Date().toISOString(), chats }, null, 1);
  }

  /** Adds the chats of an export beside those that are here; returns how many. Throws NotAnExport. */
  importText(given) {
    let file;
    try {
      file = JSON.parse(given);
    } catch {
      throw new NotAnExport("The file is no JSON.");
    }
    if (file?.format !== FORMAT || !Array.isArray(file.chats)) {
      throw new NotAnExport("The file is no export of chats from this page.");
    }
    const chats = file.chats.map(copyChat).filter(Boolean);
    for (const chat of chats) this.save(chat);
    return chats.length;
  }

  /** Unsent text of a chat. */
  draft(id) {
    return this.#get(`${PREFIX}draft/${id}`) ?? "";
  }

  setDraft(id, text) {
    const key = `${PREFIX}draft/${id}`;
    if (text) this.#set(key, text);
    else this.#storage.removeItem(key);
  }

  settings() {
    return cleanSettings(this.#read(`${PREFIX}settings`));
  }

  setSettings(settings) {
    this.#write(`${PREFIX}settings`, settings);
  }

  /** A single choice, such as the model. */
  choice(name) {
    return this.#get(PREFIX + name) ?? "";
  }

  setChoice(name, value) {
    if (value) this.#set(PREFIX + name, value);
    else this.#storage.removeItem(PREFIX + name);
  }

  /** Whether a key of the storage belongs to a chat. */
  static isChatKey(key) {
    return key === null || key.startsWith(CHAT);
  }

  #ids() {
    return Array.from({ length: this.#storage.length }, (_, index) => this.#storage.key(index))
      .filter((key) => key?.startsWith(CHAT))
      .map((key) => key.slice(CHAT.length));
  }

  #read(key) {
    try {
      return JSON.parse(this.#get(key));
    } catch {
      return null;
    }
  }

  #write(key, value) {
    this.#set(key, JSON.stringify(value));
  }

  #get(key) {
    return this.#storage.getItem(key);
  }

  #set(key, value) {
    try {
      this.#storage.setItem(key, value);
    } catch {
      this.onFull();
    }
  }
}
