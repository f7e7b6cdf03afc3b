/* View: why this word: attributions side by side, and ablations. */

import { h, refill } from "./dom.js";
import { choose, COUNTED, missing, table } from "./frame.js";
import { createHeatmap } from "./heatmap.js";
import { format, largest } from "./numbers.js";
import { plain, tokenAt, tokenName } from "./tokens.js";
import { answer } from "./without_part.js";

const MOST = 40;

/** Build the view. */
export function whyView(context) {
  const { data } = context;
  const parts = [attribution(context), ablation(context)].filter(Boolean);
  return {
    id: "why", title: "Why this word", formulaName: "why", code: ["why", "ablation"],
    intro: "Two ways to ask why: attribution gives each input token a share in one output token, and ablation switches a part of the model off and looks at what changes. " +
      "The methods of attribution often disagree, because each answers a slightly different question; trust what they and the ablation agree on.",
    node: parts.length ? h("div", {}, parts) : missing("This explanation has neither attributions nor ablations."),
    numbers: () => ({ attribution: data.attribution, ablation: data.ablation }),
  };
}

function attribution({ data, state, live }) {
  if (!data.attribution) return null;
  const whole = data.attribution;
  const all = (whole.per_position?.length ? whole.per_position : [whole]).map((one) => (one.target_position === whole.target_position ? whole : one));
  const body = h("div");

  function update() {
    const usual = Math.max(0, all.indexOf(whole));
    const at = state.index("why", all.length, usual);
    const one = all[at];
    refill(body, h("div", { class: "controls" },
      all.length > 1 ? choose("Output token", all.map((each, n) => [n, `${each.target_position}: ${plain(each.target_token)}`]), at, (value) => {
        state.set({ why: value });
        if (live) live.ask({ why: "", position: Math.max(0, all[value].target_position) });
        else update();
      }) : null),
    h("p", { class: "sentence" }, one.target_position < 0 ? ["The result: ", tokenName(one.target_token || data.output.text), ". "]
      : ["The token ", tokenName(one.target_token), ` at place ${one.target_position}. `], agreement(one, data)),
    h("div", { class: "methods" }, one.methods.map((method) => methodBars(method, one, data))));
  }

  update();
  return h("section", {}, h("h3", {}, "Attribution to the input tokens"), whole.note ? h("p", { class: "note" }, whole.note) : null, body);
}

/** Say whether the methods agree on the most important token. */
function agreement(one, data) {
  const tops = one.methods.map((method) => {
    const scores = sides(method, data)[0]?.scores.map(Math.abs) ?? [];
    return largest(scores, 1)[0];
  }).filter((place) => place !== undefined);
  const distinct = [...new Set(tops)];
  if (!tops.length) return null;
  const { tokens } = sides(one.methods[0], data)[0];
  return distinct.length === 1 ? ["Among the input tokens, all methods name ", tokenAt(tokens, distinct[0]), " first."] : ["The methods differ: among the input tokens they name ", distinct.map((place, n) => [n ? ", " : null, tokenAt(tokens, place)]), " first."];
}

function sides(method, data) {
  return ["source", "target"].filter((side) => method.scores[side]?.length && data.text[side]).map((side) => ({ side, scores: method.scores[side], tokens: data.text[side] }));
}

/** The scores of both sides, those of the output only before the place that is explained, and their largest size. */
function cutSides(method, place, data) {
  const found = sides(method, data).map((one) => (one.side === "target" && place > 0 ? { ...one, scores: one.scores.slice(0, place) } : one));
  const most = Math.max(...found.flatMap((one) => one.scores.map(Math.abs)), 1e-12);
  return found.map((one) => ({ ...one, most }));
}

function methodBars(method, { target_position: place }, data) {
  return h("figure", { class: "method" }, h("figcaption", {}, h("b", {}, method.name), h("br"), method.note),
    cutSides(method, place, data).map(({ side, scores, tokens, most }, _, both) => {
      const shown = scores.length > MOST ? largest(scores.map(Math.abs), MOST).sort((a, b) => a - b) : scores.map((_, n) => n);
      return [both.length > 1 ? h("p", { class: "note" }, side === "target" ? "What was written before:" : "The input:") : null,
        h("ol", { class: "bars" }, shown.map((n) => h("li", {}, h("span", { class: "bar-name" }, tokenAt(tokens, n)),
          h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", { class: scores[n] < 0 ? "bar-fill minus" : "bar-fill", style: { "--share": Math.abs(scores[n]) / most } })),
          h("span", { class: "bar-value" }, format(scores[n])))))];
    }));
}

function ablation(context) {
  const { data, live } = context;
  const rows = data.ablation ?? [];
  if (!rows.length && !live) return null;
  const heads = rows.filter((one) => /\.head\.\d+$/.test(one.name));
  const order = largest(rows.map((one) => Math.abs(one.change ?? 0)), 30).map((n) => rows[n]);
  return h("section", { id: "ablation" }, h("h3", {}, "Ablation: what happens without a part"),
    h("p", { class: "note" }, "Each head was switched off alone while the model read the same text. ",
      "The change is the loss without the head minus the loss with it: positive means that the head helped. ", COUNTED, " ",
      rows.some((one) => one.written !== undefined) ? "Without the heads that matter most, the model wrote its text anew. " : null,
      live ? "The buttons switch a part off for the whole page." : "On a live page any part can be switched off."),
    live ? parts(context) : null,
    heads.length ? headMap(heads) : null,
    rows.length ? table(`The ${order.length} parts whose absence changes the loss most`, ["without", "output", "loss", "change", ...(live ? ["switch"] : [])], order.map((one) => [
      h("code", {}, one.name), without(one, data), format(one.loss), h("b", {}, format(one.change)),
      ...(live ? [h("button", { type: "button", class: "small", onclick: () => live.ablate(one.name) }, "off / on")] : []),
    ]), { numeric: [2, 3] }) : null);
}

/** What the model writes without a head, or would predict at each place of the original text. */
function without(one, data) {
  if (one.written !== undefined) return ["writes ", answer(one.written, data)];
  return data.output.labels || !one.output ? answer(one.output, data) : ["predicts ", answer(one.output, data)];
}

/** Larger parts that the live page can switch off: layers, sub-layers, positions. */
function parts({ data, live }) {
  const names = ["positions", ...data.stacks.flatMap((stack) => stack.layers.flatMap((layer) => [layer.name, ...layer.attention.map((one) => one.name), `${layer.name}.ffn`]))];
  const off = new Set(live.options().ablate);
  const select = choose("Part", names.map((name) => [name, off.has(name) ? `${name} (off)` : name]), names[0], () => {});
  return h("div", { class: "controls" }, select, h("button", { type: "button", onclick: () => live.ablate(select.querySelector("select").value) }, "Switch off or on"));
}

function headMap(heads) {
  const groups = [...new Set(heads.map((one) => one.name.replace(/\.head\.\d+$/, "")))];
  const number = (one) => Number(one.name.match(/(\d+)$/)[1]);
  const count = Math.max(...heads.map(number)) + 1;
  const value = new Map(heads.map((one) => [one.name, one]));
  const most = Math.max(...heads.map((one) => Math.abs(one.change ?? 0)), 1e-12);
  const of = (r, c) => value.get(`${groups[r]}.head.${c}`);
  const map = {
    rows: groups.length, cols: count, value: (r, c) => of(r, c)?.change ?? 0, rowLabel: (r) => groups[r].replace(".layers.", " ").replace("_attn", "").replace(".", " "), colLabel: (c) => `head ${c}`, max: most, signed: true,
    name: `Change of the loss without each head; largest ${format(most)}`, describe: (r, c) => `Without ${groups[r]}, head ${c}: change ${format(of(r, c)?.change)}, output ${of(r, c)?.output}`,
  };
  const reading = h("p", { class: "note", "aria-live": "off" }, "Blue: the loss rises without the head. Red: it falls. Point at a cell to read it.");
  const heatmap = createHeatmap(map, { onpoint: (r, c) => { reading.textContent = map.describe(r, c); } });
  requestAnimationFrame(() => heatmap.update(map));
  return h("div", {}, heatmap.node, reading);
}
