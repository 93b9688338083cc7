// Puts the parts of the page together.

import { Api, advise } from "./api.js";
import { Asker } from "./asker.js";
import { KeyBox, confirmed } from "./boxes.js";
import { addMessage, branchesAt, choose, dropBranch, newChat, openCalls, pathOf } from "./chats.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { el, icon, iconButton } from "./dom.js";
import { ModelPicker } from "./models.js";
import { Follower } from "./scroll.js";
import { countSet } from "./settings.js";
import { SettingsPanel } from "./settings_panel.js";
import { ChatList } from "./sidebar.js";
import { NotAnExport, Store, storageOf } from "./store.js";

const byId = (id) => document.getElementById(id);
const NEW = "new";

function greeting(model) {
  if (!model) return "Chats are kept in this browser only.";
  if (model.state === "loading") return `${model.id} is being loaded.`;
  const size = model.max_model_len ? ` Its context holds ${model.max_model_len.toLocaleString("en")} tokens.` : "";
  return `You are talking to ${model.id}.${size}`;
}

class Page {
  #store = new Store(
    storageOf(() => localStorage),
    () => this.#notice("The browser's storage is full; delete chats, or export them first."),
  );
  #api = new Api(KeyBox.key);
  #settings = this.#store.settings();
  #chat = null;
  #frame = 0;
  #grown = null;
  #models;
  #asker;
  #conversation;
  #composer;
  #list;
  #panel;
  #follower;
  #keyBox;
  #settingsButton;

  start() {
    this.#chat = this.#emptyChat();
    this.#makeParts();
    this.#makeTopbar();
    this.#makeSidebarButtons();
    this.#listen();
    this.#panel.showSettings(this.#settings);
    this.#panel.showTheme(this.#store.choice("theme"));
    this.#settingsChanged(this.#settings);
    this.#openFromAddress();
    this.#models.refresh();
  }

  #makeParts() {
    this.#keyBox = new KeyBox(byId("key-box"), () => this.#models.refresh());
    this.#asker = new Asker(this.#api, (chat) => this.#save(chat), {
      onStart: (chat) => this.#changed(chat),
      onGrow: (chat, node) => this.#draw(chat, node),
      onEnd: (chat, node) => this.#ended(chat, node),
    });
    this.#conversation = new Conversation(byId("conversation"), {
      send: (text) => this.#sendExample(text),
      edit: (node, text) => this.#edit(node, text),
      regenerate: (node) => this.#ask(node.parent),
      retry: (node) => this.#retry(node),
      drop: (node) => this.#drop(node),
      choose: (id) => this.#choose(id),
      answerCalls: (node, results) => this.#answerCalls(node, results),
      startNew: () => this.#new(),
      askKey: () => this.#keyBox.open(),
      openSettings: (name) => this.#panel.open(name),
    });
    this.#composer = new Composer(byId("composer"), {
      onSend: (text) => this.#send(text),
      onStop: () => this.#asker.stop(this.#chat),
      onDraft: (text) => this.#store.setDraft(this.#draftId(), text),
      onEditLast: () => this.#conversation.editLast(),
    });
    this.#list = new ChatList(byId("chat-list"), {
      open: (id) => this.#open(id),
      remove: (entry) => this.#remove(entry),
      rename: (id, title) => this.#rename(id, title),
    });
    this.#panel = new SettingsPanel(byId("settings"), {
      onSettings: (settings) => this.#settingsChanged(settings),
      onChat: (change) => this.#chatSettingsChanged(change),
      onTheme: (name) => this.#setTheme(name),
      onClear: () => this.#clear(),
    });
    this.#follower = new Follower(byId("scroll"), (follows) => {
      byId("to-end").hidden = follows;
    });
  }

  #makeTopbar() {
    const bar = byId("topbar");
    bar.append(iconButton("menu", "Chats", () => document.body.classList.toggle("sidebar-open"), ".menu-button"));
    this.#models = new ModelPicker(bar, this.#api, this.#store.choice("model"), {
      onChange: (model) => this.#modelChanged(model),
      onError: (error) => this.#modelsFailed(error),
    });
    this.#settingsButton = iconButton(
      "settings",
      "Settings",
      () => (this.#panel.isOpen ? this.#panel.close() : this.#panel.open()),
      ".settings-button",
    );
    const theme = iconButton(
      "moon",
      "Dark or light",
      () => this.#setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
      ".theme-button",
    );
    theme.append(icon("sun"));
    bar.append(el("span.spacer"), theme, this.#settingsButton);
  }

  #makeSidebarButtons() {
    const fill = (id, name, text, onclick) => {
      byId(id).append(icon(name), text);
      byId(id).addEventListener("click", onclick);
    };
    fill("new-chat", "plus", "New chat", () => this.#new());
    fill("export", "download", "Export", () => this.#export());
    fill("import", "upload", "Import", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.#import(event.target));
    byId("to-end").append(icon("arrowDown"));
    byId("to-end").addEventListener("click", () => this.#follower.toEnd());
    byId("scrim").addEventListener("click", () => this.#closeDrawers());
  }

  #listen() {
    addEventListener("keydown", (event) => this.#key(event));
    addEventListener("popstate", () => this.#openFromAddress());
    addEventListener("storage", (event) => Store.isChatKey(event.key) && this.#changedElsewhere());
    new ResizeObserver(() => this.#follower.grown()).observe(byId("scroll"));
  }

  // -- keys --

  #key(event) {
    if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      this.#new();
    }
    if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (document.body.matches(".settings-open, .sidebar-open")) this.#closeDrawers();
    else this.#asker.stop(this.#chat);
  }

  #closeDrawers() {
    document.body.classList.remove("sidebar-open");
    this.#panel.close();
  }

  // -- chats --

  #draftId() {
    return pathOf(this.#chat).length ? this.#chat.id : NEW;
  }

  #new() {
    document.body.classList.remove("sidebar-open");
    if (location.hash) history.pushState(null, "", location.pathname);
    this.#setEmpty({ system: "", tools: "" });
    this.#chat = newChat();
    this.#showChat();
  }

  #open(id) {
    if (id !== this.#chat.id) history.pushState(null, "", `#${id}`);
    this.#openFromAddress();
  }

  #openFromAddress() {
    const id = location.hash.slice(1);
    const chat = this.#asker.busyChat(id) ?? (id ? this.#store.load(id) : null);
    document.body.classList.remove("sidebar-open");
    if (id && !chat) history.replaceState(null, "", location.pathname);
    this.#chat = chat ?? this.#emptyChat();
    this.#showChat();
  }

  /** A chat before its first message; what was set for it is kept like unsent text. */
  #emptyChat() {
    return newChat({ system: this.#store.draft(`${NEW}/system`), tools: this.#store.draft(`${NEW}/tools`) });
  }

  #setEmpty({ system, tools }) {
    this.#store.setDraft(`${NEW}/system`, system);
    this.#store.setDraft(`${NEW}/tools`, tools);
  }

  #showChat() {
    this.#composer.setText(this.#store.draft(this.#draftId()));
    this.#panel.showChat(this.#chat);
    this.#showSettingsMark();
    this.#follower.toEnd();
    this.#changed(this.#chat);
    this.#composer.focus();
  }

  /** Shows what has become of a chat. */
  #changed(chat) {
    this.#showList();
    if (chat !== this.#chat) return;
    this.#conversation.show(chat, this.#state());
    this.#composer.setBusy(this.#asker.isBusy(chat));
    this.#showWindow();
    document.title = chat.title ? `${chat.title} · onnx-genai` : "onnx-genai";
    this.#follower.grown();
  }

  #showList() {
    const entries = this.#store.list().map((entry) => ({ ...entry, busy: this.#asker.busyChat(entry.id) !== null }));
    this.#list.show(entries, this.#chat.id);
  }

  #state() {
    const model = this.#models.model;
    const loading = model && model.state !== "loaded";
    return {
      busy: this.#asker.isBusy(this.#chat),
      waitingText: loading ? "The model is loading…" : "Reading the prompt…",
      greeting: { title: "What is on your mind?", text: greeting(model) },
    };
  }

  /** A chat without a message is not kept, nor is one that was deleted while it was answered. */
  #save(chat) {
    if (Object.keys(chat.nodes).length) this.#store.save(chat);
  }

  async #remove(entry) {
    if (!(await confirmed(byId("confirm-box"), `Delete the chat “${entry.title}”?`, "Delete"))) return;
    const busy = this.#asker.busyChat(entry.id);
    if (busy) {
      busy.nodes = {};
      busy.root = { children: [], chosen: null };
      this.#asker.stop(busy);
    }
    this.#store.remove(entry.id);
    if (entry.id === this.#chat.id) this.#new();
    else this.#showList();
  }

  #rename(id, title) {
    const chat = id === this.#chat.id ? this.#chat : (this.#asker.busyChat(id) ?? this.#store.load(id));
    if (chat) {
      chat.title = title;
      this.#save(chat);
      this.#changed(chat);
    }
  }

  async #clear() {
    if (!(await confirmed(byId("confirm-box"), "Delete all chats in this browser?", "Delete all"))) return;
    for (const { id } of this.#store.list()) this.#store.remove(id);
    this.#new();
  }

  #export() {
    const url = URL.createObjectURL(new Blob([this.#store.exportText()], { type: "application/json" }));
    el("a", { href: url, download: `chats-${new Date().toISOString().slice(0, 10)}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  async #import(input) {
    try {
      const count = this.#store.importText(await input.files[0].text());
      this.#notice(`${count} ${count === 1 ? "chat" : "chats"} added.`, { kind: "good" });
    } catch (error) {
      this.#notice(error instanceof NotAnExport ? error.message : "The file cannot be read.");
    }
    input.value = "";
    this.#showList();
  }

  /** Another tab has changed the storage. */
  #changedElsewhere() {
    if (this.#asker.isBusy(this.#chat)) return this.#showList();
    const chat = this.#store.load(this.#chat.id);
    if (!chat) return this.#showList();
    this.#chat = chat;
    this.#panel.showChat(chat);
    return this.#changed(chat);
  }

  // -- messages --

  /** True if the text was taken. */
  #send(text) {
    const chat = this.#chat;
    if (this.#asker.isBusy(chat)) return false;
    this.#store.setDraft(this.#draftId(), "");
    const last = pathOf(chat).at(-1);
    const node = addMessage(chat, last?.id ?? null, { role: "user", content: text });
    if (!last) {
      history.pushState(null, "", `#${chat.id}`);
      this.#setEmpty({ system: "", tools: "" });
    }
    this.#ask(node.id);
    return true;
  }

  /** What stands unsent in the box stays there. */
  #sendExample(text) {
    const unsent = this.#composer.text;
    this.#send(text);
    this.#store.setDraft(this.#draftId(), unsent);
  }

  #ask(parent) {
    this.#hideNotice();
    this.#follower.toEnd();
    this.#say("Waiting for the answer.");
    const answer = this.#asker.ask(this.#chat, parent, {
      model: this.#models.model?.id ?? "",
      settings: this.#settings,
    });
    this.#follower.toEnd();
    return answer;
  }

  #edit(node, text) {
    if (this.#asker.isBusy(this.#chat)) return;
    this.#ask(addMessage(this.#chat, node.parent, { role: "user", content: text }).id);
  }

  #retry(node) {
    if (!node.content && !node.calls?.length) dropBranch(this.#chat, node.id);
    this.#ask(node.parent);
  }

  #choose(id) {
    choose(this.#chat, id);
    this.#save(this.#chat);
    this.#changed(this.#chat);
  }

  async #drop(node) {
    const chat = this.#chat;
    const follows = node.children.length ? " and what follows it" : "";
    const others = branchesAt(chat, node.id).length > 1 ? " Other branches stay." : "";
    if (!(await confirmed(byId("confirm-box"), `Delete this message${follows}?${others}`, "Delete"))) return;
    if (this.#asker.isBusy(chat) || !chat.nodes[node.id]) return;
    dropBranch(chat, node.id);
    if (Object.keys(chat.nodes).length) this.#save(chat);
    else this.#store.remove(chat.id);
    this.#changed(chat);
  }

  #answerCalls(node, results) {
    let parent = node.id;
    const open = new Set(openCalls(this.#chat, node.id).map(({ id }) => id));
    for (const { call, text } of results.filter(({ call }) => open.has(call.id))) {
      parent = addMessage(this.#chat, parent, { role: "tool", content: text, call: call.id, name: call.name }).id;
    }
    this.#ask(parent);
  }

  /** Draws at most once a frame, however fast tokens come. */
  #draw(chat, node) {
    if (chat !== this.#chat) return;
    this.#grown = node;
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#conversation.grow(chat, this.#grown, this.#state());
      this.#follower.grown();
    });
  }

  #ended(chat, node) {
    this.#changed(chat);
    if (node.error?.status === 401) this.#keyBox.open();
    if (chat === this.#chat) this.#say(node.state === "failed" ? "" : `Answer: ${node.content || "no text"}`);
    if (this.#models.model?.state !== "loaded" || node.state === "failed") this.#models.refresh();
  }

  /** Tells a screen reader. */
  #say(text) {
    byId("status").textContent = text.slice(0, 2000);
  }

  // -- settings and models --

  #settingsChanged(settings) {
    this.#settings = settings;
    this.#store.setSettings(settings);
    this.#showSettingsMark();
  }

  #chatSettingsChanged(change) {
    Object.assign(this.#chat, change);
    if (Object.keys(this.#chat.nodes).length) this.#save(this.#chat);
    else this.#setEmpty(this.#chat);
    this.#showSettingsMark();
    this.#changed(this.#chat);
  }

  #showSettingsMark() {
    const isSet = countSet(this.#settings) || this.#chat.system.trim() || this.#chat.tools.trim();
    this.#settingsButton.classList.toggle("marked", Boolean(isSet));
  }

  #setTheme(name) {
    this.#store.setChoice("theme", name);
    this.#panel.showTheme(name);
    dispatchEvent(new Event("themechange"));
  }

  #modelChanged(model) {
    if (model) {
      this.#hideNotice();
      this.#store.setChoice("model", this.#models.chosen);
    }
    this.#composer.setPlaceholder(model ? `Message ${model.id}` : "Message");
    this.#changed(this.#chat);
  }

  #modelsFailed(error) {
    if (error.status === 401) {
      this.#keyBox.open();
      this.#notice("This server asks for an API key.", { action: ["Give a key", () => this.#keyBox.open()] });
    } else {
      const { title, advice } = advise(error);
      this.#notice(`${title}. ${advice}`, { action: ["Try again", () => this.#models.refresh()] });
    }
  }

  /** How full the context window is after the last answer. */
  #showWindow() {
    const usage = pathOf(this.#chat).findLast((node) => node.usage)?.usage;
    const size = this.#models.model?.max_model_len;
    const place = byId("window");
    place.hidden = !usage || !size;
    if (place.hidden) return;
    const used = (usage.prompt ?? 0) + (usage.completion ?? 0);
    const share = Math.min((used * 100) / size, 100);
    const bar = el("span.bar", {}, el("i"));
    bar.firstChild.style.width = `${share}%`;
    place.classList.toggle("nearly-full", share > 85);
    place.title = "Tokens of this chat, of those that the model can hold";
    place.replaceChildren(bar, `${used.toLocaleString("en")} / ${size.toLocaleString("en")} tokens`);
  }

  /** Tells something at the top of the page; `action` is what can be done about it, [label, function]. */
  #notice(text, { kind = "bad", action = null } = {}) {
    const place = byId("notice");
    place.className = kind;
    place.hidden = false;
    const button = action && el("button.quiet-button", { type: "button", onclick: action[1] }, action[0]);
    place.replaceChildren(
      ...[el("span", {}, text), button, iconButton("close", "Close", () => this.#hideNotice())].filter(Boolean),
    );
  }

  #hideNotice() {
    byId("notice").hidden = true;
  }
}

new Page().start();
