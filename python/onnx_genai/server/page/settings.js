// Sampling settings: what there is, what is allowed, and how it is sent.

/** Fields of a request. `max` of a slider is no bound; `limit` is. Values: a number, or null for the model's own. */
export const FIELDS = [
  {
    name: "temperature",
    label: "Temperature",
    hint: "0 always takes the likeliest token; higher is more varied.",
    min: 0,
    max: 2,
    step: 0.05,
    rest: 1,
  },
  {
    name: "top_p",
    label: "Top-p",
    hint: "Keeps the likeliest tokens that together reach this probability.",
    min: 0,
    max: 1,
    limit: 1,
    step: 0.01,
    rest: 1,
  },
  {
    name: "min_p",
    label: "Min-p",
    hint: "Drops tokens below this share of the likeliest one's probability.",
    min: 0,
    max: 1,
    limit: 1,
    step: 0.01,
    rest: 0,
  },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    hint: "Above 1, tokens that were used become less likely.",
    min: 0.05,
    max: 2,
    step: 0.05,
    rest: 1,
  },
  { name: "top_k", label: "Top-k", hint: "Keeps this many tokens; 0 keeps all.", min: 0, whole: true },
  {
    name: "max_tokens",
    label: "Max tokens",
    hint: "Length of an answer; empty is as long as fits.",
    min: 1,
    whole: true,
  },
  {
    name: "seed",
    label: "Seed",
    hint: "The same seed and chat give the same answer; empty is random.",
    min: 0,
    limit: Number.MAX_SAFE_INTEGER,
    whole: true,
  },
];

export const EFFORTS = ["", "none", "low", "medium", "high"];

/** Settings where nothing is set. */
export function noSettings() {
  return { ...Object.fromEntries(FIELDS.map(({ name }) => [name, null])), reasoning_effort: "" };
}

/** {value} or {error} of what was typed; an empty text is null. */
export function readNumber(field, text) {
  const typed = text.trim().replace(",", ".");
  if (!typed) return { value: null };
  const value = Number(typed);
  if (!Number.isFinite(value)) return { error: "This is no number." };
  if (field.whole && !Number.isSafeInteger(value)) return { error: "A whole number, please." };
  if (value < field.min) return { error: `At least ${field.min}.` };
  if (field.limit !== undefined && value > field.limit) return { error: `At most ${field.limit}.` };
  return { value };
}

/** Settings with only what is known and allowed; anything else is unset. */
export function cleanSettings(given) {
  const clean = noSettings();
  for (const field of FIELDS) {
    const value = given?.[field.name];
    if (typeof value === "number") clean[field.name] = readNumber(field, String(value)).value ?? null;
  }
  if (EFFORTS.includes(given?.reasoning_effort)) clean.reasoning_effort = given.reasoning_effort;
  return clean;
}

/** The fields of a request that the settings give; those of the model's own are left out. */
export function requestFields(settings) {
  const set = FIELDS.filter(({ name }) => settings[name] !== null).map(({ name }) => [name, settings[name]]);
  if (settings.reasoning_effort) set.push(["reasoning_effort", settings.reasoning_effort]);
  return Object.fromEntries(set);
}

/** How many settings differ from the model's own. */
export function countSet(settings) {
  return Object.keys(requestFields(settings)).length;
}

/** {tools} or {error} of a JSON text: a list of OpenAI's tools, or of bare functions. */
export function readTools(text) {
  if (!text.trim()) return { tools: [] };
  let given;
  try {
    given = JSON.parse(text);
  } catch (error) {
    return { error: `This is no JSON: ${error.message}` };
  }
  const list = Array.isArray(given) ? given : [given];
  const tools = list.map((each) => (each?.type === "function" ? each : { type: "function", function: each }));
  const nameless = tools.findIndex((each) => typeof each.function?.name !== "string" || !each.function.name);
  return nameless < 0 ? { tools } : { error: `Tool ${nameless + 1} has no name.` };
}
