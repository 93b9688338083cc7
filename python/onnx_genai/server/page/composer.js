// The box where messages are written. What is not sent is kept with its chat.

import { icon } from "./dom.js";

/** The form `form`. `events`: onSend(text), onStop(), onDraft(text), onEditLast() -> whether there is one. */
export class Composer {
  #area;
  #button;
  #events;
  #busy = false;

  constructor(form, events) {
    this.#events = events;
    this.#area = form.querySelector("textarea");
    this.#button = form.querySelector("button");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#area.addEventListener("input", () => this.#changed());
    this.#area.addEventListener("keydown", (event) => this.#key(event));
    this.setBusy(false);
  }

  get text() {
    return this.#area.value;
  }

  /** Shows a text that was not sent yet. */
  setText(text) {
    this.#area.value = text;
    this.#fit();
  }

  setBusy(busy) {
    this.#busy = busy;
    this.#button.replaceChildren(icon(busy ? "stop" : "arrowUp"));
    this.#button.title = busy ? "Stop (Esc)" : "Send (Enter)";
    this.#button.setAttribute("aria-label", busy ? "Stop" : "Send");
    this.#button.classList.toggle("stops", busy);
    this.#fit();
  }

  setPlaceholder(text) {
    this.#area.placeholder = text;
  }

  focus() {
    // On a phone this would open the keyboard over what is to be read.
    if (matchMedia("(pointer: fine)").matches) this.#area.focus();
  }

  #submit() {
    if (this.#busy) {
      this.#events.onStop();
      return;
    }
    const text = this.#area.value.trim();
    if (text && this.#events.onSend(text)) {
      this.#area.value = "";
      this.#changed();
    }
  }

  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!this.#busy) this.#submit();
    }
    if (event.key === "ArrowUp" && !this.#area.value && !this.#busy && this.#events.onEditLast())
      event.preventDefault();
  }

  #changed() {
    this.#events.onDraft(this.#area.value);
    this.#fit();
  }

  /** The box is as high as its text, up to what the style allows. */
  #fit() {
    this.#area.style.height = "auto";
    this.#area.style.height = `${this.#area.scrollHeight + 2}px`;
    this.#button.disabled = !this.#busy && !this.#area.value.trim();
  }
}
