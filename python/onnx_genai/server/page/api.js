// Talks to the server, and says in plain words what went wrong.

import { Answer, readEvents } from "./stream.js";

/** An answer that is an error; `status` 0 means that no answer came at all. */
export class ServerError extends Error {
  constructor({ status, message, code = null, param = null, retryAfter = null }) {
    super(message);
    this.name = "ServerError";
    Object.assign(this, { status, code, param, retryAfter });
  }

  /** What is worth keeping with a message. */
  get facts() {
    return { status: this.status, code: this.code, param: this.param, message: this.message };
  }
}

/** The routes that the page uses. */
export class Api {
  #fetch;
  #key;

  /** `key()` gives the API key or an empty text. */
  constructor(key, fetcher = (...given) => fetch(...given)) {
    this.#key = key;
    this.#fetch = fetcher;
  }

  /** The models of the server: [{id, state, max_model_len, aliases}]. */
  async models() {
    const response = await this.#request("v1/models", { method: "GET" });
    return (await response.json()).data;
  }

  /**
   * Asks for a streamed answer and returns it whole; `onChange(answer)` is called for each piece.
   * Stopped by `signal`, it returns what has come so far, with `finish` "stopped".
   */
  async chat(body, { signal, onChange }) {
    const answer = new Answer();
    try {
      const response = await this.#request("v1/chat/completions", {
        method: "POST",
        signal,
        body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      });
      await readAnswer(response.body, answer, onChange);
    } catch (error) {
      if (!signal.aborted) throw Object.assign(asServerError(error), { answer });
      answer.finish = "stopped";
    }
    return answer;
  }

  async #request(path, options) {
    const headers = { accept: "application/json" };
    if (options.body) headers["content-type"] = "application/json";
    if (this.#key()) headers.authorization = `Bearer ${this.#key()}`;
    let response;
    try {
      response = await this.#fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new ServerError({ status: 0, message: "The server does not answer." });
    }
    if (!response.ok) throw await errorOf(response);
    return response;
  }
}

async function readAnswer(body, answer, onChange) {
  for await (const data of readEvents(body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError({ status: 500, ...chunk.error });
    answer.add(chunk);
    onChange(answer);
  }
  throw new ServerError({ status: 0, message: "The connection broke before the answer was complete." });
}

async function errorOf(response) {
  let given = {};
  try {
    given = (await response.json()).error ?? {};
  } catch {
    // Not ours: a proxy between may answer in another form.
  }
  return new ServerError({
    status: response.status,
    message: given.message ?? `The server answered with status ${response.status}.`,
    code: given.code,
    param: given.param,
    retryAfter: Number(response.headers.get("retry-after")) || null,
  });
}

function asServerError(error) {
  if (error instanceof ServerError) return error;
  return new ServerError({ status: 0, message: "The connection broke before the answer was complete." });
}

const BY_CODE = {
  __proto__: null, // a code may come from an imported file
  context_length_exceeded: [
    "The chat is too long for this model",
    "Start a new chat, edit an earlier message to go on from there, or ask for fewer tokens in the settings.",
  ],
  model_not_found: ["The server has no such model", "Choose another one at the top of the page."],
  loading: ["The model is still loading", "This takes a moment after the server has started; try again soon."],
  shutting_down: ["The server is shutting down", "Start it again, then try again."],
  engine_dead: ["The engine of the model has ended", "Restart the server; its log says what happened."],
  timeout: ["This took too long", "Ask for a shorter answer, or start the server with a longer --request-timeout."],
  model_load_failed: ["The model could not be loaded", "The log of the server says why."],
  body_too_large: [
    "The chat is too big to be sent",
    "Start a new chat, or start the server with a larger --max-body-bytes.",
  ],
};
const BY_STATUS = {
  0: ["No connection to the server", "Check that it is running and reachable, then try again."],
  401: ["An API key is needed", "Give a key that the server was started with."],
  403: [
    "The server does not know this address",
    "Open the page under an address that it knows, or start it with --allowed-host.",
  ],
  429: ["The server is busy", "Others are using it; try again in a moment."],
  501: ["The server cannot do this", "There is no pipeline for it."],
  503: ["The server is not ready", "Try again in a moment."],
};

const HELP = { __proto__: null, context_length_exceeded: "new", body_too_large: "new", invalid_api_key: "key" };

/** Title, advice and what helps ("key", "settings", "new" or "retry") for the facts of an error. */
export function advise({ status, code, param }) {
  const settings = {
    title: "The server refused the request",
    advice: `Change "${param}" in the settings and try again.`,
    action: "settings",
  };
  const [title, advice] = BY_CODE[code] ?? BY_STATUS[status] ?? [];
  if (title) return { title, advice, action: HELP[code] ?? (status === 401 ? "key" : "retry") };
  if (status === 400 && param) return settings;
  if (status >= 500) return { title: "The server failed", advice: "Its log says more. Try again.", action: "retry" };
  return {
    title: "The server refused the request",
    advice: "Change the message or the settings and try again.",
    action: "retry",
  };
}
