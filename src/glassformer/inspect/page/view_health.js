/* View: checks of the model on this text. */

import { h } from "./dom.js";
import { missing } from "./frame.js";
import { format } from "./numbers.js";

/** Build the view. */
export function healthView({ data }) {
  const checks = data.health ?? [];
  const failed = checks.filter((one) => !one.passed);
  const base = {
    id: "health", title: "Is it healthy?", formulaName: "health", code: ["health"],
    intro: "Each check compares a number of this very run with what it must be if the model is built and loaded rightly. " +
      "A failed check names the number, so that one knows where to look.",
  };
  if (!checks.length) return { ...base, node: missing("This explanation has no checks.") };
  return {
    ...base, numbers: () => checks,
    node: h("div", {},
      h("p", { class: failed.length ? "verdict bad" : "verdict good" }, failed.length ? `${failed.length} of ${checks.length} checks failed` : `All ${checks.length} checks passed`),
      h("ul", { class: "checks" }, [...failed, ...checks.filter((one) => one.passed)].map((one) => h("li", { class: one.passed ? "passed" : "failed" },
        h("span", { class: "mark-sign", "aria-hidden": "true" }, one.passed ? "✓" : "✗"),
        h("div", {}, h("h3", {}, one.name, h("span", { class: "unseen" }, one.passed ? ": passed" : ": failed")),
          h("p", {}, one.explanation), h("p", { class: "note" }, "measured ", h("b", { class: "measured" }, exact(one.value)), ", expected ", h("b", {}, limit(one.limit)))))))),
  };
}

/** A number other than 0 is the most that a check allows. */
function limit(value) {
  return typeof value === "number" && value !== 0 ? `at most ${format(value)}` : exact(value);
}

function exact(value) {
  return value === 0 ? "0" : format(value);
}
