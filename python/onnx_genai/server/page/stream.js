// Reads a streamed answer: bytes -> events -> one answer that grows.

const MIN_RATE_MS = 20;

/** Splits the text of an event stream into the data of its events; comments are dropped. */
export class EventSplitter {
  #rest = "";
  #data = [];

  /** The data of the events that `text` completes. */
  feed(text) {
    const events = [];
    this.#rest += text;
    for (;;) {
      const end = this.#rest.search(/\r\n|\n|\r/);
      // A lone \r at the very end may be half of a \r\n.
      if (end < 0 || (this.#rest[end] === "\r" && end === this.#rest.length - 1)) return events;
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(end + (this.#rest.startsWith("\r\n", end) ? 2 : 1));
      if (line === "" && this.#data.length) {
        events.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

/** The data of all events of a body, a ReadableStream of bytes, as they come. */
export async function* readEvents(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const splitter = new EventSplitter();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* splitter.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** An answer put together from the chunks of a chat completion. Times are in milliseconds of `now`. */
export class Answer {
  content = "";
  reasoning = "";
  calls = [];
  finish = null;
  usage = null;
  model = null;
  pieces = 0;
  #now;
  #first = null;
  #last = null;

  constructor(now = () => performance.now()) {
    this.#now = now;
    this.started = now();
  }

  /** Takes one chunk, the parsed JSON of an event. */
  add(chunk) {
    this.model = chunk.model ?? this.model;
    if (chunk.usage) this.usage = usageOf(chunk.usage);
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    this.content += delta.content ?? "";
    this.reasoning += reasoning;
    for (const each of delta.tool_calls ?? []) this.#addCall(each);
    if (delta.content || reasoning || delta.tool_calls?.length) {
      this.pieces += 1;
      this.#last = this.#now();
      this.#first ??= this.#last;
    }
    this.finish = choice.finish_reason ?? this.finish;
  }

  /** Milliseconds from the question to the first piece; null before it. */
  get firstMs() {
    return this.#first === null ? null : this.#first - this.started;
  }

  /**
   * Tokens a second between the first and the last piece; null where these are too few, or came too much at once, to
   * say anything. Until the server has told the number of tokens, pieces stand for them.
   */
  get rate() {
    const tokens = this.usage?.completion ?? this.pieces;
    const ms = this.#last === null ? 0 : this.#last - this.#first;
    return this.pieces > 2 && ms >= MIN_RATE_MS ? ((tokens - 1) * 1000) / ms : null;
  }

  #addCall(delta) {
    const call = (this.calls[delta.index ?? 0] ??= { id: "", name: "", arguments: "" });
    if (delta.id) call.id = delta.id;
    call.name += delta.function?.name ?? "";
    call.arguments += delta.function?.arguments ?? "";
  }
}

/** The token counts of an answer, under short names. */
export function usageOf(usage) {
  return {
    prompt: usage.prompt_tokens ?? 0,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    completion: usage.completion_tokens ?? 0,
    reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0,
  };
}
