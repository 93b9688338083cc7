// The drawer with system prompt, sampling, tools and looks.

import { el, iconButton } from "./dom.js";
import { EFFORTS, FIELDS, noSettings, readNumber, readTools } from "./settings.js";

const EFFORT_NAMES = { "": "The model's own", none: "Off", low: "Low", medium: "Medium", high: "High" };
const TOOLS_EXAMPLE =
  '[{"name": "weather", "description": "The weather in a city",\n  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]';

/** The drawer in `place`. `events`: onSettings(settings), onChat({system | tools}), onTheme(name), onClose(), onClear(). */
export class SettingsPanel {
  #place;
  #events;
  #settings = noSettings();
  #rows = new Map();
  #opener = null;
  #system;
  #tools;
  #toolsError;
  #effort;
  #theme;

  constructor(place, events) {
    this.#place = place;
    this.#events = events;
    this.#system = el("textarea", {
      id: "system",
      rows: 4,
      placeholder: "What the model is told before the chat begins",
      oninput: () => events.onChat({ system: this.#system.value }),
    });
    this.#tools = el("textarea.mono", {
      id: "tools",
      rows: 6,
      placeholder: TOOLS_EXAMPLE,
      spellcheck: false,
      "aria-describedby": "tools-error",
      oninput: () => this.#toolsTyped(),
    });
    this.#effort = el(
      "select",
      { id: "reasoning_effort", onchange: () => this.#set("reasoning_effort", this.#effort.value) },
      EFFORTS.map((value) => el("option", { value }, EFFORT_NAMES[value])),
    );
    this.#toolsError = el("p.field-error", { id: "tools-error", role: "alert" });
    this.#theme = el(
      "div.segments",
      { role: "radiogroup", "aria-label": "Colours" },
      [
        ["", "System"],
        ["light", "Light"],
        ["dark", "Dark"],
      ].map(([value, name]) => this.#themeChoice(value, name)),
    );
    place.append(this.#head(), el("div.panel-body", {}, ...this.#sections()));
  }

  get isOpen() {
    return !this.#place.inert;
  }

  /** Opens the drawer, at the field with the name if there is one. */
  open(name = null) {
    if (!this.isOpen) this.#opener = document.activeElement;
    this.#place.inert = false;
    document.body.classList.add("settings-open");
    (this.#place.querySelector(`#${CSS.escape(name || "system")}`) ?? this.#system).focus();
  }

  close() {
    if (!this.isOpen) return;
    this.#place.inert = true;
    document.body.classList.remove("settings-open");
    this.#opener?.focus();
    this.#events.onClose?.();
  }

  showChat(chat) {
    if (this.#system.value !== chat.system) this.#system.value = chat.system;
    if (this.#tools.value !== chat.tools) this.#tools.value = chat.tools;
    this.#toolsError.textContent = readTools(chat.tools).error ?? "";
  }

  showSettings(settings) {
    this.#settings = { ...settings };
    for (const field of FIELDS) this.#rows.get(field.name).show(settings[field.name]);
    this.#effort.value = settings.reasoning_effort;
  }

  showTheme(name) {
    for (const input of this.#theme.querySelectorAll("input")) input.checked = input.value === name;
  }

  #head() {
    return el(
      "div.panel-head",
      {},
      el("h2", {}, "Settings"),
      iconButton("close", "Close settings", () => this.close()),
    );
  }

  #sections() {
    const section = (title, hint, ...children) =>
      el("section", {}, el("h3", {}, title), hint ? el("p.hint", {}, hint) : null, ...children);
    const reset = el(
      "button.quiet-button",
      { id: "reset", type: "button", onclick: () => this.#reset() },
      "Reset all to the model's own",
    );
    return [
      section("System prompt", "For this chat.", el("label.unseen", { for: "system" }, "System prompt"), this.#system),
      section(
        "Sampling",
        "For all chats. Empty is the model's own default.",
        FIELDS.map((field) => this.#row(field)),
        el(
          "div.field",
          {},
          el("label", { for: "reasoning_effort" }, "Reasoning effort"),
          this.#effort,
          el("p.hint", {}, "For models that think before they answer."),
        ),
        reset,
      ),
      section(
        "Tools",
        "For this chat: functions that the model may call, as JSON. You give the results.",
        el("label.unseen", { for: "tools" }, "Tools"),
        this.#tools,
        this.#toolsError,
      ),
      section("Colours", null, this.#theme),
      section(
        "Chats in this browser",
        null,
        el(
          "button.quiet-button.danger",
          { id: "clear", type: "button", onclick: () => this.#events.onClear() },
          "Delete all chats",
        ),
      ),
    ];
  }

  #row(field) {
    const row = new FieldRow(field, (value) => this.#set(field.name, value));
    this.#rows.set(field.name, row);
    return row.element;
  }

  #set(name, value) {
    this.#settings[name] = value;
    this.#events.onSettings({ ...this.#settings });
  }

  #reset() {
    this.showSettings(noSettings());
    this.#events.onSettings({ ...this.#settings });
  }

  #toolsTyped() {
    this.#toolsError.textContent = readTools(this.#tools.value).error ?? "";
    this.#events.onChat({ tools: this.#tools.value });
  }

  #themeChoice(value, name) {
    return el(
      "label",
      {},
      el("input", { type: "radio", name: "theme", value, onchange: () => this.#events.onTheme(value) }),
      el("span", {}, name),
    );
  }
}

/** A number with, where it has a usual range, a slider. */
class FieldRow {
  #field;
  #box;
  #slider;
  #error;

  constructor(field, onChange) {
    this.#field = field;
    const { name, label, hint, min, max, step, rest } = field;
    this.#error = el("span.field-error", { role: "alert" });
    this.#box = el("input.number", {
      id: name,
      type: "text",
      inputMode: field.whole ? "numeric" : "decimal",
      placeholder: "default",
      autocomplete: "off",
      "aria-describedby": `${name}-hint`,
      oninput: () => this.#typed(onChange),
    });
    this.#slider =
      max === undefined
        ? null
        : el("input.slider", {
            type: "range",
            min,
            max,
            step,
            value: rest,
            "aria-label": `${label}, slider`,
            oninput: () => this.#slid(onChange),
          });
    this.element = el(
      "div.field",
      {},
      el("label", { for: name }, label),
      this.#box,
      this.#slider,
      el("p.hint", { id: `${name}-hint` }, hint),
      this.#error,
    );
  }

  show(value) {
    this.#box.value = value === null ? "" : String(value);
    this.#moveSlider(value);
    this.#error.textContent = "";
    this.#box.removeAttribute("aria-invalid");
  }

  #typed(onChange) {
    const { value, error } = readNumber(this.#field, this.#box.value);
    this.#error.textContent = error ?? "";
    if (error) this.#box.setAttribute("aria-invalid", "true");
    else this.#box.removeAttribute("aria-invalid");
    if (error) return;
    this.#moveSlider(value);
    onChange(value);
  }

  #slid(onChange) {
    const value = Number(this.#slider.value);
    this.show(value);
    onChange(value);
  }

  #moveSlider(value) {
    if (!this.#slider) return;
    this.#slider.value = String(value ?? this.#field.rest);
    this.#slider.classList.toggle("unset", value === null);
    const { min, max } = this.#field;
    const share = Math.min(Math.max(((value ?? this.#field.rest) - min) / (max - min), 0), 1);
    this.#slider.style.setProperty("--share", `${share * 100}%`);
  }
}
