/* What a model answers without one of its parts. */

import { h } from "./dom.js";
import { format } from "./numbers.js";

/** A sentence about one entry of the explanation's ablations: what is written or predicted without the head. */
export function withoutHead(data, one) {
  const loss = typeof one.loss === "number" ? ` The loss of the original text is then ${format(one.loss)} (change ${format(one.change)}).` : "";
  if (one.written !== undefined)
    return h("p", {}, "Without this head the model writes ", answer(one.written, data), ".", loss);
  return h("p", {}, data.output.labels ? "Without this head the result is " : "Without this head the likeliest tokens along the same text are ", h("q", { dir: "auto" }, one.output), ".", loss);
}

/** A text, or that it is the one that the whole model wrote. */
export function answer(text, data) {
  const original = data.baseline?.output?.text ?? data.output.text;
  return text === original ? h("b", {}, data.output.labels ? "the same result" : "the same text") : h("q", { dir: "auto" }, text);
}
