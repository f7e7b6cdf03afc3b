/* The arithmetic of one attention head, from its recorded q, k and v, so that it can be repeated by hand. */

import { tensor } from "./arrays.js";
import { softmax } from "./numbers.js";

/**
 * Compute a query's row: { q, keys: [{ k, products, dot, scaled, bias, score, allowed, exp, weight, recorded }], top, sum, output, v }.
 * `top` is the largest score, `sum` the sum of exp(score - top).
 */
export function headRow(attention, head, query) {
  const [q, k, v] = [tensor(attention.q), tensor(attention.k), tensor(attention.v)];
  const group = Math.floor(head / (attention.groups ?? q.shape[0] / k.shape[0]));
  const [bias, mask] = [tensor(attention.bias), tensor(attention.mask)];
  const weights = tensor(attention.weights);
  const queryVector = q.row(head, query);
  const keys = [];
  for (let n = 0; n < k.shape[1]; n++) {
    const keyVector = k.row(group, n);
    const products = Array.from(queryVector, (value, i) => value * keyVector[i]);
    const dot = products.reduce((a, b) => a + b, 0);
    const added = bias ? bias.at(head, query, n) : 0;
    const allowed = mask ? mask.at(query, n) > 0.5 : attention.kind !== "causal" || n <= query;
    const raw = dot * attention.scale + added;
    const score = attention.softcap ? attention.softcap * Math.tanh(raw / attention.softcap) : raw;
    keys.push({ k: keyVector, products, dot, scaled: dot * attention.scale, bias: added, raw, score, allowed, recorded: weights.at(head, query, n) });
  }
  const row = softmax(keys.map((one) => (one.allowed ? one.score : -Infinity)));
  const top = Math.max(...keys.filter((one) => one.allowed).map((one) => one.score));
  let sum = 0;
  keys.forEach((one, n) => {
    one.weight = row[n];
    one.exp = one.allowed ? Math.exp(one.score - top) : 0;
    one.v = v.row(group, n);
    sum += one.exp;
  });
  const output = Array.from(keys[0].v, (_, i) => keys.reduce((total, one) => total + one.weight * one.v[i], 0));
  return { q: queryVector, keys, top, sum, output, hasBias: Boolean(bias) };
}
