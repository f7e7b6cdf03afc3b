/* The beam search as a tree, replayed step by step. */

import { h, refill, s } from "./dom.js";
import { slider, table } from "./frame.js";
import { format, largest } from "./numbers.js";
import { elided, plain, tokenAt, tokenName } from "./tokens.js";

const CELL = { width: 150, height: 46 };
const NODE = { width: 118, height: 36 };

/** Draw the tree with a slider over its steps. */
export function beamTree(beam, state, source) {
  const byId = new Map(beam.steps.flatMap((step, n) => step.hypotheses.map((one) => [one.id, { ...one, step: n }])));
  const place = h("div", { class: "scroll beam", tabindex: 0, role: "region", "aria-label": "Tree of hypotheses" });
  const details = h("div", { class: "side below", "aria-live": "polite" });
  const counter = h("p", { class: "sentence" });
  let chosen = null;

  function path(id) {
    const found = [];
    for (let one = byId.get(id); one; one = byId.get(one.parent)) found.unshift(one);
    return found;
  }

  function draw(until) {
    const onBest = new Set(until === beam.steps.length && beam.final.length ? path(beam.final[0]).map((one) => one.id) : []);
    refill(place, drawTree(beam, byId, until, onBest, chosen, (id) => {
      chosen = id;
      draw(until);
      place.querySelector(`[data-hypothesis="${id}"]`)?.focus();
    }));
    const now = beam.steps[until - 1].hypotheses;
    const dropped = now.filter((one) => !one.kept);
    counter.textContent = `Step ${until} of ${beam.steps.length}: ${now.length} continuations were considered, ${now.length - dropped.length} kept, ${dropped.length} dropped.`;
    refill(details, chosen !== null && byId.get(chosen)?.step < until ? describe(path(chosen), source) : considered(now, path));
  }

  const start = state.get("step") === "" ? beam.steps.length : Math.max(1, state.index("step", beam.steps.length + 1));
  const control = slider("Step", { min: 1, max: beam.steps.length, step: 1, value: start }, (value) => {
    state.set({ step: value });
    draw(value);
  });
  draw(start);
  return h("section", { id: "beam" }, h("h3", {}, "Beam search: what else was considered"),
    h("p", { class: "note" }, `The beam keeps the ${beam.width} best unfinished texts at each step. A finished text's score is the sum of its log probabilities divided by its length to the power ${format(beam.length_penalty)}.`),
    finals(beam, path), h("h3", {}, "Replay, step by step"),
    h("p", { class: "note" }, "The thick path is the text that was chosen. Dashed hypotheses were dropped: choose one to read why. ■ marks an end."),
    h("div", { class: "controls" }, control), counter, place, details);
}

function drawTree(beam, byId, until, onBest, chosen, choose) {
  const most = Math.max(...beam.steps.map((step) => step.hypotheses.length));
  const [width, height] = [until * CELL.width + 20, most * CELL.height + 20];
  const svg = s("svg", { class: "tree", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Beam search" });
  const at = new Map();
  beam.steps.slice(0, until).forEach((step, n) => step.hypotheses.forEach((one, row) => at.set(one.id, { x: 10 + n * CELL.width, y: 10 + row * CELL.height })));
  for (const [id, { x, y }] of at) {
    const from = at.get(byId.get(id).parent);
    if (!from) continue;
    const [x1, y1, x2, y2] = [from.x + NODE.width, from.y + NODE.height / 2, x, y + NODE.height / 2];
    const kind = onBest.has(id) ? " best" : byId.get(id).kept ? "" : " dropped";
    svg.append(s("path", { class: `branch${kind}`, d: `M${x1},${y1} C${x1 + 16},${y1} ${x2 - 16},${y2} ${x2},${y2}` }));
  }
  for (const [id, { x, y }] of at) {
    const one = byId.get(id);
    const kind = onBest.has(id) ? " best" : one.kept ? "" : " dropped";
    const pick = () => choose(id);
    svg.append(s("g", {
      class: `hypothesis${kind}${id === chosen ? " chosen" : ""}`, transform: `translate(${x} ${y})`, tabindex: 0, role: "button", "data-hypothesis": id,
      "aria-label": `${one.token}, score ${format(one.score)}, ${one.kept ? (one.finished ? "finished" : "kept") : `dropped: ${one.reason ?? ""}`}`,
      onclick: pick, onkeydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        pick();
      },
    }, s("rect", { width: NODE.width, height: NODE.height, rx: 6 }),
    s("text", { x: 8, y: 15, class: "title" }, elided(plain(one.token), 14) + (one.finished ? " ■" : "")), s("text", { x: 8, y: 30, class: "size" }, format(one.score))));
  }
  return svg;
}

function textOf(hypotheses) {
  return hypotheses.map((one) => one.token).join("");
}

function describe(hypotheses, source) {
  const last = hypotheses[hypotheses.length - 1];
  return [h("h3", {}, "This hypothesis"), h("p", { class: "result", dir: "auto" }, hypotheses.map((one) => [tokenName(one.token), " "])),
    h("p", {}, `Sum of log probabilities ${format(last.sum)}, score ${format(last.score)}. `,
      last.kept ? (last.finished ? "It ended here." : "It was kept.") : ["Dropped: ", h("b", {}, last.reason ?? "no reason given"), "."]),
    last.attention ? h("p", {}, "Writing ", tokenName(last.token), ", it looked most at ", largest(last.attention, 3).map((n, at) => [at ? ", " : null, tokenAt(source, n), ` (${format(last.attention[n])})`]), ".") : null];
}

function considered(now, path) {
  return [table("What this step considered", ["text", "score", ""], now.map((one) => [
    h("span", { class: "long", dir: "auto" }, textOf(path(one.id))), format(one.score), one.kept ? (one.finished ? "finished" : "kept") : `dropped: ${one.reason ?? ""}`]), { numeric: [1] })];
}

function finals(beam, path) {
  if (!beam.final.length) return null;
  return [table("Finished texts, best first: the first one is the output", ["", "text", "score"], beam.final.map((id, n) => {
    const hypotheses = path(id);
    return [n + 1, h("span", { dir: "auto" }, textOf(hypotheses)), hypotheses.length ? format(hypotheses[hypotheses.length - 1].score) : ""];
  }), { numeric: [0, 2] })];
}
