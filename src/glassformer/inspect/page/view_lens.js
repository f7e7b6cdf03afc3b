/* View: what each layer would predict, and how the vectors grow. */

import { h, refill } from "./dom.js";
import { choose, COUNTED, missing, slider, table } from "./frame.js";
import { createHeatmap } from "./heatmap.js";
import { heat, palette, css, readable } from "./colors.js";
import { format } from "./numbers.js";
import { exactToken, short, tokenName } from "./tokens.js";

const WINDOW = 12;

/** Build the view. */
export function lensView(context) {
  const { data, state } = context;
  const stacks = data.stacks.filter((stack) => data.lens?.some((one) => one.stack === stack.name));
  const base = {
    id: "lens", title: "Layer by layer: what the model would say so far", formulaName: "lens", code: ["lens"],
    intro: "After each layer, a decoder's vectors are sent through the output layer at once (the logit lens): one sees the prediction form. " +
      "An encoder has no such layer, so the tokens whose embeddings are nearest to the vector are shown instead.",
  };
  const controls = h("div", { class: "controls" });
  const body = h("div");
  let shown = null;

  function update() {
    const all = stacks.length ? stacks : data.stacks;
    const stack = all.find((one) => one.name === state.get("stack")) ?? all[all.length - 1];
    const layers = (data.lens ?? []).filter((one) => one.stack === stack.name).sort((a, b) => b.layer - a.layer);
    const tokens = data.text[stack.tokens];
    const change = (changes) => {
      state.set(changes);
      update();
    };
    const count = tokens.pieces.length;
    const usual = stack.tokens === "target" ? Math.max(0, (tokens.prompt ?? 1) - 1) : 0;
    const start = Math.min(state.index("start", count, Math.min(usual, Math.max(0, count - WINDOW))), Math.max(0, count - 1));
    refill(controls,
      all.length > 1 ? choose("Stack", all.map((one) => [one.name, one.name]), stack.name, (name) => change({ stack: name, start: "", cell: "" })) : null,
      count > WINDOW ? slider("First token shown", { min: 0, max: count - WINDOW, step: 1, value: start }, (value) => change({ start: value })) : null);
    shown = layers;
    refill(body, layers.length ? lensTable(layers, tokens, start, state, change) : missing("This explanation has no predictions per layer."),
      h("h3", {}, "How long the vectors are, and how much each sub-layer adds"),
      h("p", { class: "note" }, "The length of each token's vector after each step, and beside it the length of what a sub-layer adds divided by the length of what was there."),
      h("div", { class: "pair" }, norms(stack, tokens), added(stack, tokens)));
  }

  update();
  return { ...base, node: h("div", {}, controls, h("p", { class: "note" }, COUNTED), body), numbers: () => ({ lens: shown, residual: data.stacks.map((one) => one.layers.map((layer) => ({ name: layer.name, residual: layer.residual, added: layer.added }))) }) };
}

function lensTable(layers, tokens, start, state, change) {
  const colors = palette();
  const columns = Array.from({ length: Math.min(WINDOW, tokens.pieces.length - start) }, (_, n) => start + n);
  const [cellLayer, cellPlace] = state.get("cell", `${layers[0].layer}.${start}`).split(".").map(Number);
  const value = (one) => one.probability ?? one.similarity;
  const cell = (layer, place) => {
    const best = layer.tokens[place]?.[0];
    if (!best) return h("td", {}, "");
    const color = heat(colors, Math.max(0, value(best)));
    return h("td", {}, h("button", {
      type: "button", class: "lens-cell", "aria-pressed": String(layer.layer === cellLayer && place === cellPlace),
      style: { background: css(color), color: css(readable(color)) }, onclick: () => change({ cell: `${layer.layer}.${place}` }),
      title: layer.tokens[place].map((one) => `${one.token} ${format(value(one))}`).join("\n"),
    }, h("span", { dir: "auto" }, short(best.token, 9)), h("small", {}, value(best).toFixed(4))));
  };
  const chosen = layers.find((one) => one.layer === cellLayer)?.tokens[cellPlace];
  return h("div", {},
    h("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Best token of each layer and place" },
      h("table", { class: "lens" }, h("caption", {}, "The likeliest token of each layer (rows, last layer first) at each place (columns)"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "reads"), columns.map((place) => h("th", { scope: "col", dir: "auto" }, short(tokens.pieces[place], 10))))),
        h("tbody", {}, layers.map((layer) => h("tr", {}, h("th", { scope: "row" }, layer.layer ? `layer ${layer.layer - 1}` : "embeddings"), columns.map((place) => cell(layer, place))))))),
    h("div", { class: "side below" }, chosen ? [
      h("h3", {}, cellLayer ? `After layer ${cellLayer - 1}` : "Embeddings", ", at ", tokenName(tokens.pieces[cellPlace])),
      table("The five best", ["token", chosen[0].probability === undefined ? "similarity" : "probability"], chosen.map((one) => [exactToken(one.token), format(value(one))]), { numeric: [1] }),
    ] : h("p", { class: "note" }, "Choose a cell to see its five best tokens.")));
}

function norms(stack, tokens) {
  const rows = [["embeddings", stack.embedding.norms]];
  stack.layers.forEach((layer, n) => {
    if (layer.residual.mid) rows.push([`${n} attention`, layer.residual.mid]);
    if (layer.residual.cross) rows.push([`${n} cross`, layer.residual.cross]);
    rows.push([`${n} feed-fwd`, layer.residual.out]);
  });
  return rowsMap("Length of the vectors", rows, tokens);
}

function added(stack, tokens) {
  const rows = stack.layers.flatMap((layer, n) => [
    [`${n} attention`, layer.added.self_attention], [`${n} cross`, layer.added.cross_attention], [`${n} feed-fwd`, layer.added.feedforward],
  ]).filter(([, values]) => values);
  return rowsMap("Added / before", rows, tokens);
}

function rowsMap(name, rows, tokens) {
  const most = rows.reduce((top, [, values]) => values.reduce((a, b) => Math.max(a, b), top), 0) || 1;
  const map = {
    rows: rows.length, cols: tokens.pieces.length, value: (r, c) => rows[r][1][c], rowLabel: (r) => rows[r][0], colLabel: (c) => short(tokens.pieces[c]),
    max: most, signed: false, stretch: tokens.pieces.length < 40, name: `${name}; largest ${format(most)}`, describe: (r, c) => `${rows[r][0]}, ${short(tokens.pieces[c])}: ${format(rows[r][1][c])}`,
  };
  const reading = h("p", { class: "note", "aria-live": "off" }, `${name}: the largest is ${format(most)}.`);
  const heatmap = createHeatmap(map, { tallest: 460, onpoint: (r, c) => { reading.textContent = map.describe(r, c); } });
  requestAnimationFrame(() => heatmap.update(map));
  return h("figure", {}, h("figcaption", {}, name), heatmap.node, reading);
}
