/* The exact row of one token of a pooled map: the live page asks its server for it. */

import { tensor } from "./arrays.js";
import { h, refill } from "./dom.js";
import { format, largest } from "./numbers.js";
import { tokenName, tokenStrip } from "./tokens.js";

const PATIENCE = 250;

/** Return one row (keys) of all heads' rows (heads, keys): head is a number, "mean" or "max". */
export function mergeHeads(rows, head) {
  const [heads, keys] = rows.shape;
  if (head !== "mean" && head !== "max") return rows.row(head);
  return Float32Array.from({ length: keys }, (_, n) => {
    const values = Array.from({ length: heads }, (_, one) => rows.at(one, n));
    return head === "max" ? Math.max(...values) : values.reduce((a, b) => a + b, 0) / heads;
  });
}

/** The panel of exact rows: { node, show(chosen, map, row) }. `show` is called for each row that is pointed at. */
export function exactRows({ data, state, live }) {
  const node = h("div", { class: "exact" });
  const result = h("div", { role: "status" });
  const asked = new Map();
  let timer = 0;
  let current = "";

  /** Ask after a moment, so that a pointer that passes over rows asks for none of them. */
  function want(name, token, draw) {
    current = `${name} ${token}`;
    clearTimeout(timer);
    if (asked.has(current)) return draw(asked.get(current));
    refill(result, h("p", { class: "note" }, "The model computes the exact row …"));
    const mine = current;
    timer = setTimeout(async () => {
      try {
        const found = await live.row({
          text: data.options.text, attention: name, query: token, ablate: data.options.ablate ?? [],
          ...(data.text.target ? { target_ids: data.text.target.ids } : {}),
        });
        asked.set(mine, tensor(found.weights));
        if (mine === current) draw(asked.get(mine));
      } catch (error) {
        if (mine === current) refill(result, h("p", { class: "error" }, error.message));
      }
    }, PATIENCE);
    return null;
  }

  function show({ group, layer, head }, map, row) {
    if (map.pooled === 1) return refill(node);
    const [first, last] = [row * map.pooled, Math.min(map.queries.pieces.length, (row + 1) * map.pooled) - 1];
    if (!live)
      return refill(node, h("p", { class: "note" },
        `This row stands for the tokens ${first} to ${last}. The exact row of one token needs the model: glassformer explain MODEL --live shows it.`));
    const token = Math.min(last, Math.max(first, state.index("token", map.queries.pieces.length, first)));
    const tokens = { pieces: map.queries.pieces.slice(first, last + 1), special: map.queries.special.slice(first, last + 1) };
    refill(node, h("h3", {}, "Exact row of one token"),
      tokenStrip({ tokens, label: "Tokens of this row", pressed: token - first, title: (n) => `token ${first + n}`, onchoose: (n) => {
        state.set({ token: first + n });
        show({ group, layer, head }, map, row);
        node.querySelector(`[data-place="${n}"]`)?.focus();
      } }), result);
    const isRollout = layer === "rollout";
    const name = isRollout ? `rollout.${group.kind === "cross" ? "cross" : group.stack}` : group.maps[layer].name;
    return want(name, token, (rows) => draw(mergeHeads(rows, isRollout ? 0 : head), token, map));
  }

  function draw(weights, token, map) {
    const top = largest(weights, 8).filter((n, at) => at === 0 || weights[n] >= 0.00005);
    const sum = weights.reduce((a, b) => a + b, 0);
    refill(result,
      h("p", { class: "sentence" }, "Token ", String(token), " ", tokenName(map.queries.pieces[token]), " looks most at token ", String(top[0]), " ",
        tokenName(map.keys.pieces[top[0]]), ` (${format(weights[top[0]])}).`),
      h("ol", { class: "bars exact-bars" }, top.map((n) => h("li", {},
        h("span", { class: "bar-name" }, `${n} `, tokenName(map.keys.pieces[n])),
        h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", { class: "bar-fill", style: { "--share": weights[n] } })),
        h("span", { class: "bar-value" }, format(weights[n]))))),
      h("p", { class: "note" }, `Exact weights of ${weights.length} tokens; they sum to ${sum.toFixed(3)}.`));
  }

  return { node, show };
}
