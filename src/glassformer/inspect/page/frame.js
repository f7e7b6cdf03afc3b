/* The frame of every view: title, two sentences, formula, code, export, and the picture. */

import { append, h } from "./dom.js";
import { exportButtons } from "./export.js";
import { formula } from "./formulas.js";

/**
 * Put a view into its frame. `view` is { id, title, intro, formulaName, code: [names of excerpts], node, svg?, numbers? }.
 */
export function framed(view, context) {
  const excerpts = (view.code ?? []).map((name) => context.excerpts[name]).filter(Boolean);
  const written = view.formulaName ? formula(view.formulaName) : null;
  const section = h("section", { class: `view view-${view.id}`, "aria-labelledby": "view-title" });
  append(section,
    h("div", { class: "title-row" }, h("h2", { id: "view-title" }, view.title), exportButtons(view, context.data)),
    h("p", { class: "intro" }, view.intro),
    written || excerpts.length
      ? h("div", { class: "background" },
        written ? h("details", { class: "formula" }, h("summary", {}, "Formula"), written) : null,
        excerpts.map((one) => excerptDetails(one)))
      : null,
    view.node);
  return section;
}

/** A view that has nothing to show says why. */
export function missing(text) {
  return h("p", { class: "message" }, text);
}

function excerptDetails(one) {
  return h("details", { class: "code" },
    h("summary", {}, "Code: ", h("code", {}, one.name)),
    h("p", { class: "note" }, `${one.file}, line ${one.line}`),
    h("pre", { tabindex: 0, "aria-label": `Source code of ${one.name}` }, h("code", {}, one.code)));
}

/** How to read the numbers of layers and heads. */
export const COUNTED = "Layers and heads are counted from 0, as in the names of the model's parts: layer 0 is the first.";

/** A labeled select. `choices` are [value, text] pairs. */
export function choose(label, choices, value, onchange) {
  const select = h("select", { onchange: () => onchange(select.value) },
    choices.map(([one, text]) => h("option", { value: one, selected: String(one) === String(value) }, text)));
  return h("label", { class: "control" }, h("span", {}, label), select);
}

/** A labeled slider that shows its value. */
export function slider(label, { min, max, step, value, show = String }, oninput) {
  const output = h("output", {}, show(value));
  const input = h("input", { type: "range", min, max, step, value, "aria-valuetext": show(value) });
  input.addEventListener("input", () => {
    output.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", show(Number(input.value)));
    oninput(Number(input.value));
  });
  return h("label", { class: "control slider" }, h("span", {}, label), input, output);
}

/** A table that scrolls sideways on small screens. `rows` are lists of cells. */
export function table(caption, head, rows, { numeric = [] } = {}) {
  const align = (n) => (numeric.includes(n) ? "number" : null);
  return h("div", { class: "table", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, head.map((text, n) => h("th", { scope: "col", class: align(n) }, text)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, n) => h("td", { class: align(n) }, cell)))))));
}
