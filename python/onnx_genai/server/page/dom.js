// Makes elements. Text always goes in as text; nothing here, or anywhere in the page, parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `el("a.link", { href, onclick, ariaLabel }, "text", child)`. Null children are left out. */
export function el(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "for" || key === "role" || key.startsWith("aria-")) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const ICONS = {
  arrowDown: "M12 5v14M6 13l6 6 6-6",
  arrowUp: "M12 19V5M6 11l6-6 6 6",
  brain:
    "M9.5 4a3 3 0 0 0-3 3A3.5 3.5 0 0 0 4 10.5a3.5 3.5 0 0 0 1.5 3A3.5 3.5 0 0 0 9 18.5a2.5 2.5 0 0 0 3 1.5V6a2.5 2.5 0 0 0-2.5-2zM14.5 4a3 3 0 0 1 3 3 3.5 3.5 0 0 1 2.5 3.5 3.5 3.5 0 0 1-1.5 3A3.5 3.5 0 0 1 15 18.5a2.5 2.5 0 0 1-3 1.5",
  check: "M5 12.5l4.5 4.5L19 7.5",
  chevron: "M9 6l6 6-6 6",
  chevronLeft: "M15 6l-6 6 6 6",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  menu: "M4 7h16M4 12h16M4 17h16",
  moon: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5z",
  plus: "M12 5v14M5 12h14",
  refresh: "M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5",
  settings: "M4 8h9M17 8h3M4 16h3M11 16h9M13 8a2 2 0 1 0 4 0 2 2 0 1 0-4 0M7 16a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M18.7 5.3l-1.4 1.4M6.7 17.3l-1.4 1.4",
  tool: "M14.5 6.5a4 4 0 0 1 5-1l-2.5 2.5 1.5 1.5L21 7a4 4 0 0 1-5.5 5L8 19.5a2.1 2.1 0 0 1-3-3L12.5 9a4 4 0 0 1 2-2.5z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  warning: "M12 4l9 16H3zM12 10v4M12 17v.5",
};

/** A line drawing of 24 by 24; it says nothing to a screen reader. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button with a drawing; `label` is its tip and its name for screen readers. */
export function iconButton(name, label, onclick, classes = "") {
  return el(`button.icon-button${classes}`, { type: "button", title: label, "aria-label": label, onclick }, icon(name));
}

/** Puts a text on the clipboard; true if that worked. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // no clipboard without a safe connection
  }
}

function copyBySelection(text) {
  const before = document.activeElement;
  const area = el("textarea.unseen", { value: text, readOnly: true });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  before?.focus();
  return done;
}

/** A button that copies what `read()` gives and says so for a moment. */
export function copyButton(label, read) {
  const button = iconButton(
    "copy",
    label,
    async () => {
      const done = await copyText(read());
      button.replaceChildren(icon(done ? "check" : "warning"));
      button.title = done ? "Copied" : "The browser does not let pages copy";
      button.classList.toggle("done", done);
      setTimeout(() => {
        button.replaceChildren(icon("copy"));
        button.title = label;
        button.classList.remove("done");
      }, 1600);
    },
    ".copy",
  );
  return button;
}
