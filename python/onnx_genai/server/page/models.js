// Which models there are, and which one is asked.

import { el } from "./dom.js";

const POLL_MS = 1500;

/** The choice of a model in `place`. `events`: onChange(model), onError(error). */
export class ModelPicker {
  #api;
  #events;
  #models = [];
  #timer = null;
  #select;
  #dot = el("span.dot", { "aria-hidden": "true" });

  constructor(place, api, chosen, events) {
    this.#api = api;
    this.#events = events;
    this.chosen = chosen;
    this.#select = el("select", {
      id: "model",
      "aria-label": "Model",
      onchange: () => this.#choose(this.#select.value),
    });
    place.append(el("label.model-picker", {}, this.#dot, this.#select));
    this.#show();
  }

  /** The chosen model, {id, state, max_model_len}, or null while none is known. */
  get model() {
    return this.#models.find(({ id }) => id === this.chosen) ?? this.#models[0] ?? null;
  }

  /** Asks the server; goes on asking while a model loads. True if it answered. */
  async refresh() {
    clearTimeout(this.#timer);
    let answered = true;
    try {
      const models = await this.#api.models();
      // Models that embed or order texts have nothing to say; of one that is not loaded the kind may be unknown.
      this.#models = models.filter(({ kind }) => (kind ?? "text") === "text");
    } catch (error) {
      answered = false;
      this.#events.onError(error);
    }
    if (this.#models.some(({ state }) => state === "loading")) this.#timer = setTimeout(() => this.refresh(), POLL_MS);
    this.#show();
    this.#events.onChange(this.model);
    return answered;
  }

  #choose(id) {
    this.chosen = id;
    this.#show();
    this.#events.onChange(this.model);
  }

  #show() {
    const model = this.model;
    const options = this.#models.map(({ id }) => el("option", { value: id }, id));
    this.#select.replaceChildren(...(options.length ? options : [el("option", { value: "" }, "No model")]));
    this.#select.value = model?.id ?? "";
    this.#select.classList.toggle("single", this.#models.length < 2);
    const state = model?.state ?? "unknown";
    this.#dot.className = `dot ${state}`;
    this.#select.title =
      { loaded: "In memory", loading: "Loading…", unloaded: "Loads at the first message" }[state] ?? "";
  }
}
