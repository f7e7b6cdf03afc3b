/* Temperature, top-k and top-p on the candidates of one step, in the order in which the decoder applies them. */

/**
 * Apply the settings to a step of the explanation: { candidates: [{ token, logit, log_probability }], rest, rest_log_sums }.
 * Returns { rows: [{ ...candidate, before, probability, cut }], rest, restCut, partial, exact }: `before` is the probability with
 * the temperature alone, `probability` after the cuts, `cut` null, "top-k" or "top-p"; `rest` that of all other tokens.
 * `partial` says that top-p cuts off some of the other tokens. `exact` is false where the share of the other tokens had to be estimated.
 */
export function applySampling(step, { temperature, topK, topP }, vocabulary) {
  const [rest, exact] = restWeight(step, temperature, vocabulary);
  const top = step.candidates[0].logit / temperature;
  const powers = step.candidates.map((one) => Math.exp(one.logit / temperature - top));
  const restPower = rest === null ? 0 : Math.exp(rest - top);
  const total = powers.reduce((a, b) => a + b, 0) + restPower;
  const lowest = topK > 0 ? step.candidates[Math.min(topK, step.candidates.length) - 1].logit : -Infinity;
  const kept = step.candidates.map((one) => one.logit >= lowest);
  const keepRest = topK === 0;
  const mass = powers.reduce((sum, power, n) => sum + (kept[n] ? power : 0), keepRest ? restPower : 0);
  let before = 0;
  const rows = step.candidates.map((one, n) => {
    const share = powers[n] / mass;
    const enough = topP < 1 && n > 0 && before >= topP - 1e-12;
    if (kept[n]) before += share;
    return { ...one, before: powers[n] / total, power: powers[n], cut: !kept[n] ? "top-k" : enough ? "top-p" : null };
  });
  const restCut = !keepRest ? "top-k" : topP < 1 && before >= topP - 1e-12 ? "top-p" : null;
  const partial = !restCut && topP < 1 && restPower > 0; // top-p ends somewhere among the tokens outside the list
  const restKept = restCut ? 0 : partial ? Math.min(restPower, (topP - before) * mass) : restPower;
  const left = rows.reduce((sum, row) => sum + (row.cut ? 0 : row.power), restKept);
  for (const row of rows) row.probability = row.cut ? 0 : row.power / left;
  return { rows, rest: restKept / left, restBefore: restPower / total, restCut, partial, exact: exact && !partial };
}

/** log of the sum of exp(logit / temperature) over the tokens that are not candidates: [value, exact]. */
function restWeight(step, temperature, vocabulary) {
  const others = vocabulary - step.candidates.length;
  if (others <= 0 || step.rest <= 0) return [null, true];
  const known = step.rest_log_sums?.[Math.round(temperature * 10) - 1];
  if (known !== undefined && known !== null && Math.abs(temperature * 10 - Math.round(temperature * 10)) < 1e-6) return [known, true];
  const first = step.candidates[0];
  const normalizer = first.logit - first.log_probability;
  const atOne = Math.log(step.rest) + normalizer;
  if (temperature === 1) return [atOne, true];
  return [(atOne - Math.log(others)) / temperature + Math.log(others), false];
}
