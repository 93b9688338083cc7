// The list of chats.

import { el, iconButton } from "./dom.js";

const DAY = 86_400_000;

/** Shows chats in `place`. `actions`: open(id), remove(entry), rename(id, title). */
export class ChatList {
  #place;
  #actions;

  constructor(place, actions) {
    this.#place = place;
    this.#actions = actions;
  }

  /** `entries`: [{id, title, updated, busy}], the last used first. */
  show(entries, currentId) {
    const focused = this.#place.contains(document.activeElement)
      ? document.activeElement.closest("li")?.dataset.id
      : null;
    const groups = new Map();
    for (const entry of entries) {
      const name = groupName(entry.updated);
      groups.set(name, [...(groups.get(name) ?? []), this.#item(entry, entry.id === currentId)]);
    }
    this.#place.replaceChildren(
      ...[...groups].map(([name, items]) => el("section", {}, el("h2", {}, name), el("ul", {}, items))),
    );
    if (!entries.length) this.#place.append(el("p.hint", {}, "Chats are kept in this browser only."));
    if (focused) this.#place.querySelector(`li[data-id="${CSS.escape(focused)}"] .chat-link`)?.focus();
  }

  #item(entry, isCurrent) {
    const { open, remove } = this.#actions;
    const title = entry.title || "New chat";
    const link = el(
      "button.chat-link",
      {
        type: "button",
        title,
        onclick: () => open(entry.id),
        ondblclick: () => this.#rename(entry, item),
        "aria-current": isCurrent ? "page" : null,
      },
      title,
    );
    const item = el(
      `li${isCurrent ? ".current" : ""}${entry.busy ? ".busy" : ""}`,
      { data: { id: entry.id } },
      link,
      iconButton("edit", `Rename ${title}`, () => this.#rename(entry, item), ".small"),
      iconButton("trash", `Delete ${title}`, () => remove(entry), ".small"),
    );
    return item;
  }

  #rename(entry, item) {
    const input = el("input.rename", { value: entry.title, "aria-label": "Name of the chat", maxLength: 200 });
    const done = () => this.#actions.rename(entry.id, input.value.trim() || entry.title);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") input.value = entry.title;
      if (event.key === "Enter" || event.key === "Escape") {
        event.stopPropagation();
        input.blur();
      }
    });
    input.addEventListener("blur", done, { once: true });
    item.replaceChildren(input);
    input.focus();
    input.select();
  }
}

function groupName(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  return time >= today - 7 * DAY ? "Last 7 days" : "Older";
}
