/* View: who looks at whom. */

import { h, refill } from "./dom.js";
import { attentionGroups, headName, placeLabel, rolloutOf, usualGroup, weightsOf, writtenAt } from "./attention_maps.js";
import { attentionLines } from "./attention_lines.js";
import { choose, COUNTED, missing } from "./frame.js";
import { createHeatmap } from "./heatmap.js";
import { exactRows } from "./exact_rows.js";
import { format, largest } from "./numbers.js";
import { thumbnails } from "./thumbnails.js";
import { plain, tokenAt, tokenName, tokenStrip } from "./tokens.js";
import { withoutHead } from "./without_part.js";

const MOST_STRIP = 400;
const MANY = 30;

/** Build the view. */
export function attentionView(context) {
  const { data, state } = context;
  const groups = attentionGroups(data);
  const base = {
    id: "attention", title: "Attention: where each token looks", formulaName: "attention", code: ["attention"],
    intro: "Each row is a token that looks, each column a token that is looked at; a row's weights are not negative and " +
      "sum to 1. Every head has its own map: choose a thumbnail to see one, and a token to read its row.",
  };
  if (!groups.length) return { ...base, node: missing("No attention was recorded.") };
  const controls = h("div", { class: "controls" });
  const small = h("details", { class: "all-heads", open: true });
  const picture = h("div", { class: "picture" });
  const reading = h("div", { class: "reading", "aria-live": "off" });
  const strip = h("div");
  const exact = exactRows(context);
  let map = null;
  let heatmap = null;
  let drawing = null;

  function selection() {
    const group = groups.find((one) => one.id === state.get("attention")) ?? usualGroup(groups);
    const isRollout = state.get("layer") === "rollout" && rolloutOf(data, group);
    const layer = isRollout ? "rollout" : state.index("layer", group.maps.length, group.maps.length - 1);
    const heads = group.maps[0].weights.shape[0];
    const named = state.get("head", "mean");
    const head = named === "mean" || named === "max" ? named : state.index("head", heads);
    return { group, layer, head, heads, shape: state.choice("as", ["map", "lines"]), scale: state.choice("scale", ["largest", "one"]) };
  }

  function readMap({ group, layer, head, scale }) {
    const weights = weightsOf(data, group, layer, head);
    const [queries, keys] = [data.text[group.queries], data.text[group.keys]];
    const label = (row) => {
      const written = weights.pooled === 1 ? writtenAt(data, group, row) : null;
      return placeLabel(queries, row, weights.pooled) + (written === null ? "" : ` → ${plain(written)}`);
    };
    const where = layer === "rollout" ? "rollout of all layers" : `layer ${layer}, ${named(head)}`;
    return {
      rows: weights.shape[0], cols: weights.shape[1], value: weights.at, row: weights.row, pooled: weights.pooled,
      rowLabel: label, colLabel: (c) => placeLabel(keys, c, weights.pooled), queries, keys,
      max: scale === "one" ? 1 : weights.data.reduce((a, b) => Math.max(a, b), 0) || 1, signed: false,
      name: `${group.title}, ${where}: ${weights.shape[0]} rows, ${weights.shape[1]} columns`,
      describe: (r, c) => `${label(r)} looks at ${placeLabel(keys, c, weights.pooled)}: ${format(weights.at(r, c))}`,
    };
  }

  function update() {
    const chosen = selection();
    map = readMap(chosen);
    const query = state.index("query", map.rows, usualQuery(chosen.group, map.queries));
    refill(controls, controlsOf(chosen));
    refill(small, h("summary", {}, "All layers and heads"), thumbnails(chosen.group, chosen, (layer, head) => change({ layer, head })));
    if (chosen.shape === "lines") {
      drawing = attentionLines(map, query, (row) => change({ query: row }));
      refill(picture, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lines" }, drawing));
      heatmap = null;
    } else {
      drawing = null;
      if (!heatmap) {
        heatmap = createHeatmap(map, { onpick: (r, c) => change({ query: r, key: c }), onpoint: (r) => read(chosen, r) });
        refill(picture, heatmap.node, map.rows > MANY ? h("p", { class: "hint" }, "Ctrl + wheel or the buttons zoom; drag to move a map that is zoomed in.") : null);
      }
      requestAnimationFrame(() => {
        heatmap?.update(map);
        heatmap?.point(query, state.index("key", map.cols, largest(map.row(query), 1)[0]));
      });
    }
    refill(strip, stripOf(query));
    read(chosen, query);
  }

  function change(changes) {
    state.set(changes);
    update();
  }

  function controlsOf({ group, layer, head, heads, shape, scale }) {
    const layers = group.maps.map((_, n) => [n, `layer ${n}`]);
    if (rolloutOf(data, group)) layers.push(["rollout", "rollout (all layers)"]);
    const choices = [["mean", "average of all heads"], ["max", "maximum of all heads"]];
    for (let n = 0; n < heads; n++) choices.push([n, `head ${n}${kindText(group, layer, n)}`]);
    return [
      groups.length > 1 ? choose("Attention", groups.map((one) => [one.id, one.title]), group.id, (id) => change({ attention: id, layer: "", key: "" })) : null,
      choose("Layer", layers, layer, (value) => change({ layer: value })),
      layer === "rollout" ? null : choose("Head", choices, head, (value) => change({ head: value })),
      choose("Show as", [["map", "heat map"], ["lines", "lines"]], shape, (value) => change({ as: value })),
      choose("Darkest color", [["largest", "largest weight"], ["one", "weight 1"]], scale, (value) => change({ scale: value })),
    ];
  }

  function stripOf(query) {
    if (map.pooled > 1)
      return h("p", { class: "message" }, `This input is long, so the map is pooled: each cell is the largest weight of ${map.pooled} × ${map.pooled} tokens. `,
        context.live ? "Point at a row: the model then computes the exact row of one of its tokens." : null);
    if (map.rows > MOST_STRIP) return null;
    const { group } = selection();
    const written = map.queries.pieces.map((_, n) => writtenAt(data, group, n));
    const writes = written.some((piece) => piece !== null);
    const tokens = writes ? { pieces: written.map((piece) => piece ?? "…"), special: written.map((piece) => piece === null) } : map.queries;
    return [h("h3", {}, writes ? "Choose the word that was written" : "Choose the token that looks"), tokenStrip({
      tokens, label: writes ? "Words that were written" : "Tokens that look", pressed: query, onchoose: (n) => {
        change({ query: n, key: "" });
        strip.querySelector(`[data-place="${n}"]`)?.focus();
      },
      onhover: (n) => read(selection(), n),
    })];
  }

  function read({ group, layer, head }, row) {
    const weights = map.row(row);
    const top = largest(weights, 8).filter((n, at) => at === 0 || weights[n] >= 0.00005);
    const written = map.pooled === 1 ? writtenAt(data, group, row) : null;
    const name = (n) => (map.pooled === 1 ? tokenAt(map.keys, n) : h("b", {}, map.colLabel(n)));
    const sentence = h("p", { class: "sentence" },
      written === null ? [map.pooled === 1 ? tokenAt(map.queries, row) : h("b", {}, map.rowLabel(row)), " looks most at "]
        : ["To write ", tokenName(written), " after ", tokenAt(map.queries, row), ", the model looked most at "],
      name(top[0]), ` (${format(weights[top[0]])})`, top.length > 1 ? [", then at ", name(top[1]), ` (${format(weights[top[1]])})`] : null, ".");
    const sum = map.pooled === 1 ? weights.reduce((a, b) => a + b, 0) : null;
    refill(reading, sentence,
      h("ol", { class: "bars" }, top.map((n) => h("li", {}, h("span", { class: "bar-name" }, name(n)),
        h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", { class: "bar-fill", style: { "--share": weights[n] } })),
        h("span", { class: "bar-value" }, format(weights[n]))))),
      layer !== "rollout" && (head === "mean" || head === "max" || map.pooled > 1) ? null : h("p", { class: "note" }, sum === null ? null : `The row sums to ${sum.toFixed(3)}.`),
      headFacts(group, layer, head, row));
    exact.show({ group, layer, head }, map, row);
  }

  function headFacts(group, layer, head, row) {
    if (layer === "rollout") return h("p", { class: "note" }, "Rollout multiplies the average maps of all layers: how much of each token arrives through the whole stack.");
    if (head === "mean" || head === "max")
      return h("p", { class: "note" }, "Choose one head to see its kind, and what changes without it.");
    const kind = group.maps[layer].head_kinds?.[head];
    const name = headName(group, layer, head);
    const without = data.ablation?.find((one) => one.name === name);
    return h("div", { class: "head-facts" },
      kind ? h("p", {}, "Measured kind of this head: ", h("b", {}, kind.kind), ` (score ${format(kind.score)}).`) : null,
      without ? withoutHead(data, without) : null,
      group.maps[layer].q ? h("a", { class: "go", href: "#", onclick: (event) => {
        event.preventDefault();
        context.go({ view: "head", attention: group.id, layer, head, query: row });
      } }, "Follow the numbers inside this head") : null,
      context.live ? h("button", { type: "button", onclick: () => context.live.ablate(name) }, context.live.options().ablate.includes(name) ? "Switch this head on again" : "Switch this head off") : null);
  }

  update();
  const node = h("div", {}, strip, controls, h("p", { class: "note" }, COUNTED), h("div", { class: "split" }, picture, h("div", { class: "side" }, reading, exact.node)), small);
  return {
    ...base, node, svg: () => drawing ?? heatmap?.svg(),
    numbers: () => ({ name: map.name, rows: map.rows, columns: map.cols, weights: Array.from({ length: map.rows }, (_, r) => [...map.row(r)]) }),
  };
}

function named(head) {
  return head === "mean" ? "average of all heads" : head === "max" ? "maximum of all heads" : `head ${head}`;
}

function kindText(group, layer, head) {
  const kind = group.maps[layer]?.head_kinds?.[head];
  return kind ? ` · ${kind.kind} ${kind.score.toFixed(2)}` : "";
}

/** The place that writes the first token of the output, or the first word of a text that was read. */
function usualQuery(group, tokens) {
  if (group.queries === "target") return Math.max(0, (tokens.prompt ?? 1) - 1);
  return Math.max(0, tokens.special.findIndex((special) => !special));
}
