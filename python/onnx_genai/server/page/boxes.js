// Boxes over the page: the API key, and questions before something is lost.

import { el } from "./dom.js";
import { storageOf } from "./store.js";

const KEY = "onnx-genai/key";
const brief = storageOf(() => sessionStorage);
const lasting = storageOf(() => localStorage);

/** The API key: kept until the tab is closed or, if the reader wants it, in this browser. */
export class KeyBox {
  #dialog;
  #input = el("input", { type: "password", id: "key", autocomplete: "off", required: true, spellcheck: false });
  #keep = el("input", { type: "checkbox", id: "keep-key" });
  #said = el("p.field-error", { role: "alert" });
  #onKey;

  /** `onKey()` is called when a key was given. */
  constructor(dialog, onKey) {
    this.#dialog = dialog;
    this.#onKey = onKey;
    dialog.append(
      el(
        "form",
        { onsubmit: (event) => this.#given(event) },
        el("h2", { id: "key-title" }, "This server asks for an API key"),
        el("p.hint", {}, "It is one of those that the server was started with. It is sent to this server only."),
        el("label", { for: "key" }, "API key"),
        this.#input,
        el("label.check", {}, this.#keep, "Keep it in this browser"),
        this.#said,
        el(
          "div.box-buttons",
          {},
          el("button.quiet-button", { type: "button", onclick: () => dialog.close() }, "Not now"),
          el("button.main-button", { type: "submit" }, "Continue"),
        ),
      ),
    );
  }

  /** The key, or an empty text. */
  static key() {
    return brief.getItem(KEY) ?? lasting.getItem(KEY) ?? "";
  }

  open() {
    this.#said.textContent = KeyBox.key() ? "The server does not know the key that was given." : "";
    this.#input.value = "";
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#input.focus();
  }

  #given(event) {
    event.preventDefault();
    const key = this.#input.value.trim();
    if (!/^[!-~]+$/.test(key)) {
      this.#said.textContent = "A key has no blanks and only plain characters.";
      return;
    }
    brief.setItem(KEY, key);
    if (this.#keep.checked) lasting.setItem(KEY, key);
    else lasting.removeItem(KEY);
    this.#dialog.close();
    this.#onKey();
  }
}

/** Asks before `label` is done; resolves to whether it shall be. */
export function confirmed(dialog, question, label) {
  return new Promise((resolve) => {
    const close = (answer) => () => {
      dialog.returnValue = answer;
      dialog.close();
    };
    const no = el("button.quiet-button", { type: "button", onclick: close("") }, "Cancel");
    dialog.returnValue = "";
    dialog.replaceChildren(
      el("p", { id: "question" }, question),
      el("div.box-buttons", {}, no, el("button.main-button.danger", { type: "button", onclick: close("yes") }, label)),
    );
    dialog.setAttribute("aria-labelledby", "question");
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
    no.focus();
  });
}
