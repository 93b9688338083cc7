// What the browser tests put into the page to look at it and to play the server's part. Run as a plain script.

window.probe = {
  /** Sets the value of a field as if it was typed or chosen. */
  fill(selector, text, event) {
    const element = document.querySelector(selector);
    element.value = text;
    element.dispatchEvent(new Event(event));
  },

  /** Bodies of the requests from now on. */
  sent: [],
  watch() {
    const real = window.fetch;
    window.fetch = (path, how) => {
      if (how?.body) this.sent.push(how.body);
      return real(path, how);
    };
  },

  /** Every request fails until `online`. */
  offline() {
    const real = window.fetch;
    this.online = () => {
      window.fetch = real;
    };
    window.fetch = () => Promise.reject(new TypeError("gone"));
  },

  /** Answers with pieces of text and a usage. Each wait of `ms` begins when the page asks for more, however late it is. */
  answer(pieces, ms, usage) {
    const event = (text) => new TextEncoder().encode(`data: ${text}\n\n`);
    const deltas = pieces.map((content) => event(JSON.stringify({ choices: [{ delta: { content } }] })));
    const pull = async (controller) => {
      await new Promise((done) => setTimeout(done, ms));
      if (deltas.length) return controller.enqueue(deltas.shift());
      controller.enqueue(event(JSON.stringify({ choices: [], usage })));
      controller.enqueue(event("[DONE]"));
      controller.close();
    };
    window.fetch = async () => new Response(new ReadableStream({ pull }, { highWaterMark: 0 }));
  },

  /** What is copied and saved from now on. */
  copied: [],
  saved: {},
  catchOutput() {
    navigator.clipboard.writeText = async (text) => void this.copied.push(text);
    const make = URL.createObjectURL;
    URL.createObjectURL = (blob) => {
      this.saved.blob = blob;
      return make(blob);
    };
    HTMLAnchorElement.prototype.click = function () {
      window.probe.saved.name = this.download;
    };
  },

  /** Chooses a file with the text in the field for imports. */
  giveFile(text) {
    const input = document.querySelector("#import-file");
    const box = new DataTransfer();
    box.items.add(new File([text], "chats.json"));
    input.files = box.files;
    input.dispatchEvent(new Event("change"));
  },

  /** Pixels between the view and the end of the conversation. */
  below() {
    const { scrollHeight, clientHeight, scrollTop } = document.querySelector("#scroll");
    return scrollHeight - clientHeight - scrollTop;
  },

  /** Whether an element lies within the width of the window. */
  fits(selector) {
    const { left, right } = document.querySelector(selector).getBoundingClientRect();
    return left >= 0 && right <= innerWidth;
  },

  /** Pixels between the bottom of an element and the top of another. */
  gap(above, below) {
    const [first, second] = [above, below].map((each) => document.querySelector(each).getBoundingClientRect());
    return second.top - first.bottom;
  },

  /** What is said, message by message. */
  messages() {
    return [...document.querySelectorAll(".bubble, .assistant > .prose")].map((element) => element.innerText.trim());
  },

  /** Controls that a screen reader could not name. */
  nameless() {
    return [...document.querySelectorAll("button, input, textarea, select, a")]
      .filter(
        (element) =>
          !element.hidden &&
          !(element.textContent.trim() || element.ariaLabel || element.labels?.length || element.title),
      )
      .map((element) => element.outerHTML);
  },

  /** A word for what has the focus, and whether that can be seen. */
  focused() {
    const element = document.activeElement;
    const seen =
      element === document.body || element.id === "prompt" || getComputedStyle(element).outlineStyle !== "none";
    return [element.id || element.ariaLabel || element.className, seen];
  },

  brightness() {
    return Number(getComputedStyle(document.body).backgroundColor.match(/\d+/g)[0]);
  },
};
