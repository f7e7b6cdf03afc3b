/* Numbers as the page writes them. */

/** Format with four decimals, or in powers of ten where four decimals would say 0. */
export function format(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return value > 0 ? "infinity" : value < 0 ? "−infinity" : "not a number";
  const size = Math.abs(value);
  if (size !== 0 && size < 0.00005) return value.toExponential(2).replace("-", "−");
  return (Number.isInteger(value) && size >= 1000 ? grouped(value) : value.toFixed(size >= 1000 ? 2 : 4)).replace("-", "−");
}

/** Format a share as a percentage with two decimals, so that it is right to 0.0001. */
export function percent(share) {
  return share > 0 && share < 0.00005 ? "<0.01 %" : `${(100 * share).toFixed(2)} %`;
}

/** Format a whole number with thin spaces between groups of three digits. */
export function grouped(value) {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** "a, b and c" */
export function listed(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}`;
}

/** Keep a number within limits. */
export function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

/** Return the places of the `count` largest values, largest first. */
export function largest(values, count) {
  const order = Array.from(values, (_, n) => n);
  return order.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

/** exp(x) / sum of exp(x), without overflow; -Infinity gets 0. */
export function softmax(values) {
  const top = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((value) => value / sum);
}
