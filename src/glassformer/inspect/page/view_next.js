/* View: the next token, and the beam. */

import { h, refill } from "./dom.js";
import { applySampling } from "./sampling.js";
import { beamTree } from "./beam_tree.js";
import { missing, slider } from "./frame.js";
import { percent } from "./numbers.js";
import { exactToken, tokenName, tokenStrip } from "./tokens.js";

/** Build the view. */
export function nextView(context) {
  const { data, state } = context;
  const base = {
    id: "next", title: "The next token", formulaName: "next", code: ["next", "beam"],
    intro: "At each place the model gives every token of its vocabulary a score; softmax turns the scores into probabilities. " +
      "Temperature sharpens or flattens them, top-k keeps the k likeliest, top-p the fewest that together reach p; the rest is never drawn.",
  };
  if (!data.next?.length) return { ...base, node: data.output.labels ? labels(data) : missing("This model writes no text, so it has no next token.") };
  const body = h("div");
  const list = h("div");
  let result = null;

  function settings() {
    const number = (name, usual) => (state.get(name) === "" || Number.isNaN(Number(state.get(name))) ? usual : Number(state.get(name)));
    return { temperature: Math.max(0.1, number("temperature", data.options.temperature || 1)), topK: number("top_k", data.options.top_k ?? 0), topP: number("top_p", data.options.top_p ?? 1) };
  }

  function place() {
    const usual = Math.min(data.next.length - 1, Math.max(0, (data.text.target?.prompt ?? 1) - 1 - data.next[0].position));
    return state.index("place", data.next.length, usual);
  }

  function update() {
    const { temperature, topK, topP } = settings();
    const set = (name) => (value) => {
      state.set({ [name]: value });
      updateList();
    };
    refill(body,
      h("h3", {}, "Choose the place"),
      tokenStrip({ tokens: wordsOf(), label: "Written tokens", pressed: place(), onchoose: (n) => {
        state.set({ place: n });
        update();
        body.querySelector(`[data-place="${n}"]`)?.focus();
      } }),
      h("div", { class: "controls" },
        slider("Temperature", { min: 0.1, max: 2, step: 0.1, value: temperature, show: (value) => value.toFixed(1) }, set("temperature")),
        slider("Top-k", { min: 0, max: 50, step: 1, value: topK, show: (value) => (value ? String(value) : "off") }, set("top_k")),
        slider("Top-p", { min: 0.05, max: 1, step: 0.05, value: topP, show: (value) => (value >= 1 ? "off" : value.toFixed(2)) }, set("top_p"))),
      context.live ? h("button", { type: "button", onclick: () => context.live.ask({ sample: "1" }) }, "Write again, drawing at random with these settings") : null,
      list,
      data.beam ? beamTree(data.beam, state, data.text.source) : h("p", { class: "note" }, "No beam search: this text was written one token at a time."));
    updateList();
  }

  function wordsOf() {
    return { pieces: data.next.map((one) => one.chosen?.token ?? "…"), special: data.next.map((one) => !one.chosen) };
  }

  function updateList() {
    const step = data.next[place()];
    result = applySampling(step, settings(), data.model.vocabulary);
    const kept = result.rows.filter((one) => !one.cut).length;
    const read = data.text[data.text.target ? "target" : "source"].pieces[step.position];
    refill(list,
      h("p", { class: "sentence" }, "After ", tokenName(read), " the model took ", step.chosen ? tokenName(step.chosen.token) : "nothing", ". ",
        result.restCut ? `${kept} ${kept === 1 ? "token" : "tokens"} may be drawn, all others are cut off by ${result.restCut}.`
          : result.partial ? "All tokens of the list may be drawn; top-p cuts off some of the others." : "Every token may be drawn."),
      h("ol", { class: "bars candidates" }, result.rows.slice(0, 20).map((one) => bar(one.token, one, step.chosen?.id === one.id)),
        sumBar(`${result.rows.length - 20} more candidates`, result.rows.slice(20)),
        bar(null, { before: result.restBefore, probability: result.rest, cut: result.restCut }, false)),
      result.exact ? null : h("p", { class: "note" }, "At this temperature the share of the tokens outside the list is estimated."));
  }

  update();
  return { ...base, node: h("div", {}, body), numbers: () => ({ settings: settings(), step: data.next[place()], result, beam: data.beam }) };
}

function sumBar(name, rows) {
  if (!rows.length) return null;
  const total = (field) => rows.reduce((sum, one) => sum + one[field], 0);
  const cuts = new Set(rows.map((one) => one.cut));
  return bar(null, { before: total("before"), probability: total("probability"), cut: cuts.size === 1 ? rows[0].cut : null }, false, name);
}

function bar(token, { before, probability, cut }, chosen, name = "all other tokens") {
  return h("li", { class: cut ? "cut" : null },
    h("span", { class: "bar-name" }, token === null ? h("i", {}, name) : exactToken(token), chosen ? " ✓" : null),
    h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", { class: "bar-fill", style: { "--share": cut ? before : probability } })),
    h("span", { class: "bar-value" }, cut ? `cut: ${cut}` : percent(probability)));
}

function labels(data) {
  return h("div", {}, h("p", {}, "This model gives a label, not a text:"), h("ol", { class: "bars" }, data.output.labels.map((one) => bar(one.label, { probability: one.probability, cut: null }, false))));
}
