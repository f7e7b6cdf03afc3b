/* View: the model drawn from its real sizes, block by block. */

import { h, refill, s } from "./dom.js";
import { blockFacts, stackBlocks } from "./flow_blocks.js";
import { COUNTED } from "./frame.js";
import { format, percent } from "./numbers.js";
import { short, tokenName, visible } from "./tokens.js";

const BLOCK = { width: 310, height: 40, gap: 12 };
const COLUMN = 385;
const MOST_BARS = 60;

/** Build the view. */
export function flowView(context) {
  const { data, state } = context;
  const picture = h("div", { class: "picture flow" });
  const details = h("div", { class: "side", "aria-live": "polite" });
  let svg = null;

  function open(stack) {
    const value = state.get(`open-${stack.name}`, stack === data.stacks[data.stacks.length - 1] ? "0" : "-1");
    return value === "-1" ? -1 : Math.min(stack.layers.length - 1, Number.parseInt(value, 10) || 0);
  }

  function draw() {
    const focused = document.activeElement?.getAttribute?.("data-block");
    const narrow = (picture.clientWidth || 800) < 620 && data.stacks.length > 1;
    svg = drawFlow(data, open, state.get("block"), narrow, pick);
    refill(picture, svg);
    if (focused) picture.querySelector(`[data-block="${CSS.escape(focused)}"]`)?.focus();
  }

  function pick(stack, block) {
    const changes = { block: `${stack.name}.${block.id}` };
    if (block.kind === "layer") changes[`open-${stack.name}`] = block.isOpen ? "-1" : String(block.layer);
    state.set(changes);
    draw();
    refill(details, explain(data, stack, block, context));
  }

  function start() {
    const [name, ...rest] = state.get("block").split(".");
    const stack = data.stacks.find((one) => one.name === name);
    const block = stack && stackBlocks(data, stack, open(stack)).find((one) => one.id === rest.join("."));
    refill(details, block ? explain(data, stack, block, context)
      : h("p", { class: "note" }, `Choose a block to see what it does and its numbers. Layers open and close. ${COUNTED}`), outcome(data));
  }

  let width = 0;
  new ResizeObserver(() => {
    if (picture.clientWidth === width) return;
    width = picture.clientWidth;
    draw();
  }).observe(picture);
  draw();
  start();
  return {
    id: "flow", title: "The flow: from tokens to the result", formulaName: "flow", code: ["flow"],
    intro: `This is ${data.model.name}, drawn from its real sizes: the text enters at the bottom and the result leaves at the top. ` +
      "Each layer adds what its attention and its feed-forward network find to the vector of each token.",
    node: h("div", { class: "split" }, picture, details), svg: () => svg,
    numbers: () => ({ model: data.model, stacks: data.stacks.map(({ name, embedding, layers }) => ({ name, embedding, layers: layers.map(({ attention, ...rest }) => rest) })) }),
  };
}

function explain(data, stack, block, context) {
  const facts = blockFacts(data, stack, block);
  return [
    h("h3", {}, `${block.title} `, h("small", {}, block.size && !["open", "close"].includes(block.size) ? block.size : stack.name)),
    h("p", {}, facts.text), facts.bars ? tokenBars(facts.bars) : null,
    facts.go ? h("a", { class: "go", href: "#", onclick: (event) => {
      event.preventDefault();
      context.go(facts.go);
    } }, "Open its view") : null,
  ];
}

function tokenBars({ title, values, tokens }) {
  const most = Math.max(...values, 1e-9);
  const shown = values.slice(0, MOST_BARS);
  return h("figure", {}, h("figcaption", {}, title), h("ol", { class: "bars" }, shown.map((value, n) => h("li", {},
    h("span", { class: "bar-name" }, tokenName(tokens.pieces[n])),
    h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", { class: "bar-fill", style: { "--share": value / most } })),
    h("span", { class: "bar-value" }, format(value))))),
    values.length > shown.length ? h("p", { class: "note" }, `${values.length - shown.length} more tokens are in the JSON.`) : null);
}

/** What came out at the end: labels, or the first written token's best candidates. */
function outcome(data) {
  const rows = data.output.labels?.map((one) => [one.label, one.probability])
    ?? data.next?.[data.next.length - 1]?.candidates.slice(0, 5).map((one) => [visible(one.token), Math.exp(one.log_probability)]);
  return h("div", { class: "outcome" }, h("h3", {}, "What comes out"),
    data.output.text ? h("p", { class: "result", dir: "auto" }, data.output.text) : null,
    rows && !data.output.labels ? h("p", { class: "note" }, "The likeliest tokens of the last step:") : null,
    rows ? h("ol", { class: "bars" }, rows.slice(0, 8).map(([name, share]) => h("li", {},
      h("span", { class: "bar-name", dir: "auto" }, name),
      h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", { class: "bar-fill", style: { "--share": share } })),
      h("span", { class: "bar-value" }, percent(share))))) : null);
}

function drawFlow(data, open, chosen, narrow, pick) {
  const columns = data.stacks.map((stack) => ({ stack, blocks: stackBlocks(data, stack, open(stack)) }));
  const tall = (blocks) => blocks.length * (BLOCK.height + BLOCK.gap) + 60;
  const height = narrow ? columns.reduce((sum, one) => sum + tall(one.blocks), 0) : Math.max(...columns.map((one) => tall(one.blocks)));
  const width = narrow ? COLUMN : COLUMN * columns.length;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Drawing of ${data.model.name}`, style: { "max-width": `${width / 14}rem` } });
  svg.append(s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { class: "arrow-head", d: "M0,0 L8,4 L0,8 z" }))));
  let bottom = height;
  const places = {};
  columns.forEach(({ stack, blocks }, n) => {
    const left = narrow ? 35 : n * COLUMN + 35;
    const base = narrow ? bottom : height;
    blocks.forEach((block, at) => {
      const y = base - 44 - at * (BLOCK.height + BLOCK.gap) - BLOCK.height;
      places[`${stack.name}.${block.id}`] = { x: left, y };
      if (at) svg.append(s("line", { class: "wire", x1: left + BLOCK.width / 2, x2: left + BLOCK.width / 2, y1: y + BLOCK.height + BLOCK.gap, y2: y + BLOCK.height + 1, "marker-end": "url(#arrow)" }));
      svg.append(drawBlock(data, stack, block, left, y, `${stack.name}.${block.id}` === chosen, pick));
    });
    const words = data.text[stack.tokens].pieces.slice(0, 6).map((piece) => short(piece, 8)).join(" ");
    svg.append(s("text", { class: "axis", x: left + BLOCK.width / 2, y: base - 22, "text-anchor": "middle" }, words + (data.text[stack.tokens].pieces.length > 6 ? " …" : "")));
    svg.append(s("text", { class: "axis strong", x: left, y: base - 4 }, `${stack.name} (${stack.tokens === "source" ? "reads the input" : "writes the output"})`));
    bottom -= tall(blocks);
  });
  connect(svg, columns, places, narrow);
  return svg;
}

/** The line from the end of the encoder to the cross-attention of the open decoder layer, or to the first layer. */
function connect(svg, columns, places, narrow) {
  if (columns.length < 2) return;
  const from = places[`encoder.${columns[0].blocks[columns[0].blocks.length - 1].id}`];
  const crosses = columns[1].blocks.filter((block) => block.kind === "cross" || (block.kind === "layer" && !block.isOpen));
  for (const block of crosses) {
    const to = places[`decoder.${block.id}`];
    const middle = to.y + BLOCK.height / 2;
    const d = narrow ? `M${from.x + BLOCK.width},${from.y + 20} h18 V${middle} h-16`
      : `M${from.x + BLOCK.width},${from.y + 20} H${to.x - 30} V${middle} H${to.x - 2 + (block.inside ? 16 : 0)}`;
    svg.append(s("path", { class: "wire memory", d, fill: "none", "marker-end": "url(#arrow)" }));
  }
}

function drawBlock(data, stack, block, x, y, chosen, pick) {
  const inset = block.inside ? 16 : 0;
  const width = BLOCK.width - inset;
  const action = () => pick(stack, block);
  const group = s("g", {
    class: `block ${block.kind}${chosen ? " chosen" : ""}`, tabindex: 0, role: "button", "data-block": `${stack.name}.${block.id}`,
    "aria-label": `${stack.name}, ${block.title}, ${block.size}`, "aria-expanded": block.kind === "layer" ? String(Boolean(block.isOpen)) : null,
    transform: `translate(${x + inset} ${y})`, onclick: action,
    onkeydown: (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      action();
    },
  });
  group.append(s("rect", { width, height: BLOCK.height, rx: 8 }), s("text", { x: 12, y: 25, class: "title" }, (block.kind === "layer" ? (block.isOpen ? "▾ " : "▸ ") : "") + block.title));
  const size = block.kind === "layer" ? block.size.replace(/, open$/, "") : block.size;
  group.append(s("text", { x: width - 12, y: block.heads ? 17 : 25, class: "size", "text-anchor": "end" }, size === "close" ? "" : size));
  if (block.heads) drawHeads(group, data.model, width);
  return group;
}

/** One square per head; heads that share keys and values have the same shade. */
function drawHeads(group, model, width) {
  const size = Math.min(9, 120 / model.heads);
  const share = model.heads / model.kv_heads;
  for (let n = 0; n < Math.min(model.heads, 40); n++)
    group.append(s("rect", { class: `head-square shade-${Math.floor(n / share) % 2}`, x: width - 12 - (model.heads - n) * size, y: 24, width: size - 1.5, height: 9, rx: 1.5 }));
}
