/* Colors of numbers, from the style sheet, so that light and dark pages have their own. */

/** Return the colors of the page as it is now: { paper, ink, soft, line, low, high, minus, plus } as [r, g, b]. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => parse(style.getPropertyValue(`--${name}`).trim());
  return {
    paper: read("paper"), ink: read("ink"), soft: read("soft-ink"), line: read("line"), accent: read("accent"),
    low: read("heat-low"), middle: read("heat-middle"), high: read("heat-high"), minus: read("minus"), plus: read("plus"),
  };
}

/** Color of a share from 0 to 1. */
export function heat(colors, share) {
  const x = Math.min(1, Math.max(0, share));
  return x < 0.5 ? mix(colors.low, colors.middle, 2 * x) : mix(colors.middle, colors.high, 2 * x - 1);
}

/** Color of a number from -1 to 1. */
export function diverging(colors, share) {
  const x = Math.min(1, Math.max(-1, share));
  return x < 0 ? mix(colors.low, colors.minus, -x) : mix(colors.low, colors.plus, x);
}

/** Black or white, whichever can be read on the color. */
export function readable([r, g, b]) {
  const light = [r, g, b].map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] > 0.18 ? [0, 0, 0] : [255, 255, 255];
}

/** "rgb(1,2,3)" */
export function css([r, g, b]) {
  return `rgb(${r},${g},${b})`;
}

function mix(a, b, share) {
  return a.map((value, n) => Math.round(value + (b[n] - value) * share));
}

function parse(text) {
  const value = Number.parseInt(text.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}
