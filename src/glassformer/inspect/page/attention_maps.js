/* The attention maps of an explanation: which there are, and one of them as a table of numbers. */

import { asTensor, tensor } from "./arrays.js";
import { short } from "./tokens.js";

const KINDS = { self: "self-attention", causal: "causal self-attention", cross: "cross-attention" };

/** Return the groups [{ id, title, stack, kind, queries, keys, maps: [attention of each layer] }]. */
export function attentionGroups(data) {
  const groups = [];
  for (const stack of data.stacks)
    for (const layer of stack.layers)
      for (const attention of layer.attention) {
        const id = `${stack.name}-${attention.kind === "cross" ? "cross" : "self"}`;
        let group = groups.find((one) => one.id === id);
        if (!group) {
          const title = `${stack.name[0].toUpperCase()}${stack.name.slice(1)} ${KINDS[attention.kind] ?? attention.kind}`;
          group = { id, title, stack: stack.name, kind: attention.kind, queries: attention.queries, keys: attention.keys, maps: [] };
          groups.push(group);
        }
        group.maps.push(attention);
      }
  return groups;
}

/** The attention that a reader wants to see first: what was read for each written word, if there is such. */
export function usualGroup(groups) {
  return groups.find((one) => one.kind === "cross") ?? groups[0];
}

/** Return the rollout of the group as a tensor, or null. */
export function rolloutOf(data, group) {
  return tensor(data.rollout?.[group.kind === "cross" ? "cross" : group.stack]);
}

/** Return the weights (queries, keys) of a layer: head is a number, "mean" or "max"; layer a number or "rollout". */
export function weightsOf(data, group, layer, head) {
  if (layer === "rollout") return rolloutOf(data, group);
  const all = tensor(group.maps[layer].weights);
  const [heads, rows, cols] = all.shape;
  if (head !== "mean" && head !== "max")
    return asTensor([rows, cols], all.data.subarray(head * rows * cols, (head + 1) * rows * cols), all.pooled);
  const merged = new Float32Array(rows * cols);
  for (let n = 0; n < heads; n++)
    for (let at = 0; at < merged.length; at++) {
      const value = all.data[n * rows * cols + at];
      merged[at] = head === "max" ? Math.max(merged[at], value) : merged[at] + value / heads;
    }
  return asTensor([rows, cols], merged, all.pooled);
}

/** Label of a row or column that stands for one token, or for several where the map is pooled. */
export function placeLabel(tokens, place, pooled) {
  if (pooled === 1) return short(tokens.pieces[place] ?? "", 18);
  const last = Math.min(tokens.pieces.length, (place + 1) * pooled) - 1;
  return `${place * pooled}–${last} ${short(tokens.pieces[place * pooled] ?? "", 8)}`;
}

/** The token that the model wrote at a query's place, or null where the query does not write. */
export function writtenAt(data, group, place) {
  if (group.stack !== "decoder" || !data.next) return null;
  return data.next.find((one) => one.position === place)?.chosen?.token ?? null;
}

/** Name of a head as the explanation's ablations write it. */
export function headName(group, layer, head) {
  return `${group.maps[layer].name}.head.${head}`;
}
