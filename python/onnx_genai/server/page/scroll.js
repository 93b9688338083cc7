// Follows a text that grows at its end, until the reader scrolls away.

/** Keeps the end of `area` in sight. `onChange(follows)` is called when that begins or ends. */
export class Follower {
  #area;
  #onChange;
  #top = 0;
  follows = true;

  constructor(area, onChange) {
    this.#area = area;
    this.#onChange = onChange;
    area.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    // The wheel tells what the reader wants before the area has moved, so that new text cannot win.
    area.addEventListener("wheel", (event) => event.deltaY < 0 && this.#isLong() && this.#set(false), {
      passive: true,
    });
  }

  /** New text has come, or the area has another size. */
  grown() {
    if (!this.follows) return;
    this.#area.scrollTop = this.#area.scrollHeight;
    this.#top = this.#area.scrollTop;
  }

  /** Goes to the end and follows from there. */
  toEnd() {
    this.#set(true);
    this.grown();
  }

  #isLong() {
    return this.#area.scrollHeight > this.#area.clientHeight + 1;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#area;
    if (scrollHeight - scrollTop - clientHeight <= 2) this.#set(true);
    else if (scrollTop < this.#top - 1) this.#set(false);
    this.#top = scrollTop;
  }

  #set(follows) {
    if (this.follows === follows) return;
    this.follows = follows;
    this.#onChange(follows);
  }
}
