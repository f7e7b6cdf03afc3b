/* View: how the model learned. */

import { h, refill } from "./dom.js";
import { tensor } from "./arrays.js";
import { createHeatmap } from "./heatmap.js";
import { lineChart } from "./line_chart.js";
import { missing, slider } from "./frame.js";
import { format, grouped, listed } from "./numbers.js";
import { short } from "./tokens.js";

/** Build the view. */
export function learningView(context) {
  const { data, state } = context;
  const learning = data.learning;
  const base = {
    id: "learning", title: "How it learned", formulaName: "learning", code: ["learning"],
    intro: "The loss is the average surprise of the model at the right token, in nats; it falls as the model learns. " +
      "The slider goes through the checkpoints of the run: the same text, seen by the model as it was then.",
  };
  const lines = curves(learning);
  const updates = [...new Set([...(learning?.checkpoints ?? []), ...(learning?.samples ?? [])].map((one) => one.update))].sort((a, b) => a - b);
  if (!Object.keys(lines).length && !updates.length) return { ...base, node: missing("No run is stored beside this model, so there is no learning curve.") };
  const chart = h("div", { class: "picture" });
  const detail = h("div");
  let heatmap = null;

  function draw(n) {
    const update = updates[n] ?? null;
    if (Object.keys(lines).length) refill(chart, lineChart("Learning curve", lines, update));
    if (update === null) return;
    const before = (list) => [...(list ?? [])].reverse().find((one) => one.update <= update);
    const [sample, checkpoint, point] = [before(learning.samples), before(learning.checkpoints), before(learning.curve)];
    const scores = point ? measured(point).map(([name, value]) => `${name} ${format(value)}`) : [];
    refill(detail, h("p", { class: "sentence" }, `Update ${grouped(update)}`, point ? h("span", {}, `: ${listed(scores)}`) : null),
      sample?.text ? h("p", {}, "It wrote ", h("q", { dir: "auto" }, sample.text)) : null, checkpoint?.attention ? attention(checkpoint) : null);
  }

  function attention(checkpoint) {
    const weights = tensor(checkpoint.attention);
    const [rows, cols] = weights.shape.slice(-2);
    const labels = (count) => Object.values(data.text).find((one) => one?.pieces.length === count)?.pieces;
    const name = (pieces) => (n) => (pieces ? short(pieces[n]) : String(n));
    const flat = (r, c) => weights.data[r * cols + c];
    const map = {
      rows, cols, value: flat, rowLabel: name(rows === data.text.target?.pieces.length ? data.text.target.pieces : labels(rows)), colLabel: name(cols === data.text.source.pieces.length ? data.text.source.pieces : labels(cols)),
      max: weights.data.reduce((a, b) => Math.max(a, b), 0) || 1, signed: false, name: `Attention at update ${checkpoint.update}`, describe: (r, c) => `${map.rowLabel(r)} looks at ${map.colLabel(c)}: ${format(flat(r, c))}`,
    };
    heatmap = createHeatmap(map);
    requestAnimationFrame(() => heatmap.update(map));
    return h("figure", {}, h("figcaption", {}, "The attention on this text at that time"), heatmap.node);
  }

  const start = updates.length ? state.index("checkpoint", updates.length, updates.length - 1) : 0;
  draw(start);
  const control = updates.length > 1 ? slider("Checkpoint", { min: 0, max: updates.length - 1, step: 1, value: start, show: (n) => `update ${grouped(updates[n])}` }, (n) => {
    state.set({ checkpoint: n });
    draw(n);
  }) : null;
  return { ...base, node: h("div", {}, chart, control ? h("div", { class: "controls" }, control) : null, detail), numbers: () => learning };
}

/** The losses of the curve by name, as [update, value] pairs; other scores have other units and are left to the sentence. */
function curves(learning) {
  const lines = {};
  for (const point of learning?.curve ?? [])
    for (const [name, value] of measured(point)) if (/loss|^validation$/i.test(name)) (lines[name] ??= []).push([point.update, value]);
  return lines;
}

/** The [name, number] pairs of a point; those of the validation are a table of their own. */
function measured(point) {
  return Object.entries(point).flatMap(([name, value]) =>
    value !== null && typeof value === "object" ? Object.entries(value) : [[name, value]],
  ).filter(([name, value]) => typeof value === "number" && name !== "update" && name !== "seconds");
}
