/* View: the numbers inside one head. */

import { h, refill } from "./dom.js";
import { attentionGroups, usualGroup } from "./attention_maps.js";
import { choose, COUNTED, missing, table } from "./frame.js";
import { headRow } from "./head_arithmetic.js";
import { format, largest } from "./numbers.js";
import { tokenAt, tokenStrip } from "./tokens.js";

/** Build the view. */
export function headView(context) {
  const { data, state } = context;
  const base = {
    id: "head", title: "Inside one head: from two vectors to a weight", formulaName: "head", code: ["head"],
    intro: "A head gives the token that looks a query vector q, and each token that is looked at a key vector k and a value vector v. " +
      "The product of q and k, scaled, becomes the weight with which v is taken: every step below can be repeated by hand.",
  };
  const groups = attentionGroups(data).filter((group) => group.maps.some((map) => map.q));
  if (!groups.length)
    return { ...base, node: missing("The vectors q, k and v are stored for texts of at most 64 tokens. Explain a shorter text to see them.") };
  const controls = h("div", { class: "controls" });
  const body = h("div");
  let row = null;

  function update() {
    const group = groups.find((one) => one.id === state.get("attention")) ?? usualGroup(groups);
    const layer = state.index("layer", group.maps.length, group.maps.length - 1);
    const attention = group.maps[layer];
    const head = state.index("head", attention.q.shape[0]);
    const [queries, keys] = [data.text[group.queries], data.text[group.keys]];
    const query = state.index("query", queries.pieces.length, group.queries === "target" ? (queries.prompt ?? 1) - 1 : 0);
    row = headRow(attention, head, query);
    const key = state.index("key", keys.pieces.length, largest(row.keys.map((one) => one.weight), 1)[0]);
    const change = (changes) => {
      state.set(changes);
      update();
    };
    refill(controls,
      groups.length > 1 ? choose("Attention", groups.map((one) => [one.id, one.title]), group.id, (id) => change({ attention: id, layer: "", query: "", key: "" })) : null,
      choose("Layer", group.maps.map((_, n) => [n, `layer ${n}`]), layer, (value) => change({ layer: value, key: "" })),
      choose("Head", Array.from({ length: attention.q.shape[0] }, (_, n) => [n, `head ${n}`]), head, (value) => change({ head: value, key: "" })));
    const focused = document.activeElement?.closest?.("[data-strip]")?.dataset.strip;
    const place = document.activeElement?.dataset?.place;
    refill(body,
      h("h3", {}, "1. Choose who looks, and at whom"),
      h("div", { "data-strip": "query" }, tokenStrip({ tokens: queries, label: "Token that looks (query)", pressed: query, onchoose: (n) => change({ query: n, key: "" }) })),
      h("p", { class: "note" }, "looks at"),
      h("div", { "data-strip": "key" }, tokenStrip({ tokens: keys, label: "Token that is looked at (key)", pressed: key, bar: (n) => row.keys[n].weight, title: (n) => format(row.keys[n].weight), onchoose: (n) => change({ key: n }) })),
      product(row, queries.pieces[query], keys.pieces[key], key, attention),
      scores(row, keys, key, attention),
      values(row, keys));
    if (focused && place) body.querySelector(`[data-strip="${focused}"] [data-place="${place}"]`)?.focus();
  }

  update();
  return { ...base, node: h("div", {}, controls, h("p", { class: "note" }, COUNTED), body), numbers: () => row };
}

function product(row, query, key, place, attention) {
  const one = row.keys[place];
  const cells = (values) => Array.from(values, (value) => value.toFixed(4).replace("-", "−"));
  const head = ["", ...Array.from(one.k, (_, n) => String(n)), "sum"];
  return [
    h("h3", {}, "2. Multiply q and k, number by number, and add up"),
    table(`q of ${query}, k of ${key} and their products`, head, [
      ["q", ...cells(row.q), ""], ["k", ...cells(one.k), ""], ["q\u00a0·\u00a0k", ...cells(one.products), h("b", {}, format(one.dot))],
    ], { numeric: head.map((_, n) => n).slice(1) }),
    h("p", { class: "equation" }, "score = ", format(attention.scale), " × ", format(one.dot), row.hasBias ? ` + bias ${format(one.bias)}` : "",
      attention.softcap ? ` → ${format(attention.softcap)} · tanh(${format(one.raw)} / ${format(attention.softcap)})` : "", " = ",
      h("b", { class: "score" }, format(one.score)), one.allowed ? null : " (masked: this token may not be looked at, so its weight is 0)"),
    h("p", { class: "note" }, `The scale is ${format(attention.scale)}${Math.abs(attention.scale - one.k.length ** -0.5) < 1e-6 ? ` = 1/√${one.k.length}, because a head has ${one.k.length} dimensions` : ""}.`),
  ];
}

function scores(row, keys, place, attention) {
  const isChanged = row.hasBias || attention.softcap; // otherwise the score is the scaled product
  const head = ["token", ...(isChanged ? ["scale × q·k"] : []), ...(row.hasBias ? ["bias"] : []), isChanged ? "score" : "score = scale × q·k", "exp(score − largest)", "weight", "recorded"];
  const rows = row.keys.map((one, n) => [
    n === place ? h("mark", {}, tokenAt(keys, n)) : h("span", {}, tokenAt(keys, n)), ...(isChanged ? [format(one.scaled)] : []), ...(row.hasBias ? [format(one.bias)] : []),
    one.allowed ? format(one.score) : "masked", format(one.exp), h("b", {}, format(one.weight)), format(one.recorded)]);
  const worst = Math.max(...row.keys.map((one) => Math.abs(one.weight - one.recorded)));
  return [
    h("h3", {}, "3. Softmax over the row"),
    h("p", { class: "note" }, `Largest score ${format(row.top)}; the exponentials sum to ${format(row.sum)}; each is divided by that sum. `,
      `The weights computed here and those recorded from the model differ by at most ${worst.toExponential(1).replace("-", "−")}.`),
    table("Scores and weights of the row", head, rows, { numeric: head.map((_, n) => n).slice(1) }),
  ];
}

function values(row, keys) {
  const best = largest(row.keys.map((one) => one.weight), 4);
  const size = row.output.length;
  const head = ["", ...Array.from({ length: size }, (_, n) => String(n))];
  const cells = (list) => Array.from(list, (value) => value.toFixed(4).replace("-", "−"));
  return [
    h("h3", {}, "4. Take the values with these weights"),
    table(`The head's output: the weighted sum of all values. The ${best.length} largest parts are shown`, head, [
      ...best.map((n) => [[format(row.keys[n].weight), " × v of ", tokenAt(keys, n)], ...cells(row.keys[n].v)]),
      [h("b", {}, "output"), ...cells(row.output).map((value) => h("b", {}, value))],
    ], { numeric: head.map((_, n) => n).slice(1) }),
    h("p", { class: "note" }, "The outputs of all heads are put side by side and multiplied by one more matrix; the result is added to the token's vector."),
  ];
}
