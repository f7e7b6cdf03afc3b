/* The blocks of a model, from the tokens up: what the drawing of the flow shows. */

import { format, grouped } from "./numbers.js";

const ADDED_POSITIONS = ["sinusoidal", "learned"];

/** Return the blocks of a stack from bottom to top: [{ id, title, size, kind, layer?, lit? }]. `open` is a layer or -1. */
export function stackBlocks(data, stack, open) {
  const { model } = data;
  const side = data.text[stack.tokens];
  const blocks = [
    { id: "tokens", kind: "data", title: "Tokens", size: `${grouped(side.pieces.length)} ids` },
    { id: "embedding", kind: "embedding", title: "Embedding", size: `${grouped(model.vocabulary)} × ${model.width}` },
  ];
  if (ADDED_POSITIONS.includes(model.positions))
    blocks.push({ id: "positions", kind: "embedding", title: `+ ${model.positions} positions`, size: `tokens × ${model.width}` });
  stack.layers.forEach((layer, n) => blocks.push(...(n === open ? openLayer(data, layer, n) : [closedLayer(layer, n)])));
  if (model.norm_order === "pre" || model.config.final_norm)
    blocks.push({ id: "norm", kind: "norm", title: "Final norm", size: normName(model) });
  if (stack === data.stacks[data.stacks.length - 1]) blocks.push(headBlock(data));
  return blocks;
}

function closedLayer(layer, n) {
  return { id: `${n}`, kind: "layer", layer: n, title: `Layer ${n}`, size: `${layer.attention.length + 1} sub-layers, open` };
}

function ffnSize(model, n) {
  const { n_experts: experts, experts_per_token: few, dense_layers: dense } = model.config;
  if (experts && !(dense ?? []).includes(n)) return `${few} of ${experts} experts`;
  return `${model.width} → ${model.ffn_width} → ${model.width}`;
}

function openLayer(data, layer, n) {
  const { model } = data;
  const parts = layer.attention.map((one) => ({
    id: `${n}.${one.kind === "cross" ? "cross" : "self"}`, kind: one.kind === "cross" ? "cross" : "attention", layer: n, heads: true,
    title: one.kind === "cross" ? "Cross-attention" : one.kind === "causal" ? "Causal self-attention" : "Self-attention",
    size: model.kv_heads === model.heads ? `${model.heads} heads` : `${model.heads} heads · ${model.kv_heads} kv`,
  }));
  parts.push({ id: `${n}.ffn`, kind: "ffn", layer: n, title: "Feed-forward", size: ffnSize(model, n) });
  const found = [{ id: `${n}`, kind: "layer", layer: n, title: `Layer ${n}`, size: "close", isOpen: true }];
  const parallel = model.config.parallel_ffn ?? "none";
  if (parallel !== "none") return [...found, ...parallelParts(model, parts, n, parallel)];
  for (const part of parts) {
    const norm = { id: `${part.id}.norm`, kind: "norm", layer: n, inside: true, title: "Norm", size: normName(model) };
    part.inside = true;
    const add = { id: `${part.id}.add`, kind: "add", layer: n, inside: true, title: "+ residual", size: "" };
    found.push(...(model.norm_order === "post" ? [part, add, norm] : [norm, part, add]));
  }
  return found;
}

/** Attention and feed-forward that read the same vector; their outputs are added together. */
function parallelParts(model, parts, n, kind) {
  const norm = (id) => ({ id, kind: "norm", layer: n, inside: true, title: "Norm", size: normName(model) });
  const found = parts.flatMap((part, at) => [
    ...(at === 0 || kind === "two_norms" ? [norm(`${part.id}.norm`)] : []),
    { ...part, inside: true, title: at === 0 ? part.title : `${part.title}, in parallel` },
  ]);
  return [...found, { id: `${n}.ffn.add`, kind: "add", layer: n, inside: true, title: "+ residual", size: "both are added" }];
}

function normName(model) {
  return { layer: "LayerNorm", rms: "RMSNorm", offset_rms: "RMSNorm (1 + g)", mean_std: "mean and deviation" }[model.config.norm] ?? "norm";
}

function headBlock(data) {
  const { model, output } = data;
  if (output.kind === "label" || output.kind === "tags")
    return { id: "head", kind: "head", title: "Head", size: `${model.width} → ${model.config.n_labels ?? output.labels?.length ?? ""} labels` };
  if (output.kind === "vector") return { id: "head", kind: "head", title: "Pooling", size: `one vector of ${model.width}` };
  return { id: "head", kind: "head", title: "Output layer", size: `${model.width} → ${grouped(model.vocabulary)}` };
}

/** Sentences and numbers about a block, as [text, rows of a table | null, link state | null]. */
export function blockFacts(data, stack, block) {
  const { model } = data;
  const layer = block.layer === undefined ? null : stack.layers[block.layer];
  const tokens = data.text[stack.tokens];
  const perToken = (values, title) => ({ title, values, tokens });
  const part = block.id.split(".")[1];
  const self = stack.name;
  switch (block.kind) {
    case "data": return { text: "The text as numbers: one id of the vocabulary per token.", go: { view: "tokenization" } };
    case "embedding": return block.id === "positions"
      ? { text: "A vector that depends only on the place of the token is added, because attention by itself does not know the order.", go: { view: "positions" } }
      : { text: `Each id selects one row of a table: a vector of ${model.width} numbers. Their lengths:`, bars: perToken(stack.embedding.norms, "length of the vector") };
    case "layer": return { text: "A layer reads the vectors, adds what its sub-layers find, and passes them on. Length of each token's vector after it:", bars: perToken(layer.residual.out, "length after the layer") };
    case "attention": return { text: `Each of the ${model.heads} heads mixes the vectors of the tokens it looks at. How much it adds, compared with what was there:`, bars: perToken(layer.added.self_attention ?? [], "added / before"), go: { view: "attention", attention: `${self}-self`, layer: block.layer } };
    case "cross": return { text: "Each position of the output looks at the encoded input. How much it adds, compared with what was there:", bars: perToken(layer.added.cross_attention ?? [], "added / before"), go: { view: "attention", attention: `${self}-cross`, layer: block.layer } };
    case "ffn": return { text: `Two matrices with ${model.config.activation ?? "an activation"}${model.config.gated ? ", gated," : ""} between them, for each token alone. How much it adds:`, bars: perToken(layer.added.feedforward ?? [], "added / before") };
    case "norm": return { text: "Brings the numbers of each vector to the same size, so that deep stacks stay trainable." };
    case "add": return { text: "What the sub-layer found is added to its input: the residual connection. Length of each token's vector:", bars: perToken(part === "ffn" ? layer.residual.out : layer.residual.mid ?? layer.residual.out, "length of the vector") };
    default: return data.next
      ? { text: "One score per token of the vocabulary; softmax makes them probabilities.", go: { view: "next" } }
      : { text: `The result: ${data.output.text ?? ""}`, labels: data.output.labels };
  }
}

/** Short facts about the model for the header: [[name, value]]. */
export function modelFacts(data) {
  const { model, output } = data;
  const layers = Object.entries(model.layers).filter(([, count]) => count).map(([name, count]) => `${count} ${name}`).join(" + ");
  const facts = [
    ["kind", model.kind], ["parameters", grouped(model.parameters)], ["layers", layers],
    ["heads", model.kv_heads === model.heads ? String(model.heads) : `${model.heads} (${model.kv_heads} key-value)`],
    ["width", String(model.width)], ["vocabulary", grouped(model.vocabulary)], ["positions", model.positions], ["norm", `${model.norm_order}-norm`],
  ];
  if (typeof output.loss === "number") facts.push(["loss", format(output.loss)]);
  return facts;
}
