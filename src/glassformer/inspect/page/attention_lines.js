/* Attention as lines between two columns of tokens. */

import { s } from "./dom.js";
import { elided } from "./tokens.js";

const HEIGHT = 24;
const WIDTH = 560;
const MOST = 60;

/**
 * Draw the lines of a window of at most 60 queries and keys around the chosen query.
 * map: { rows, cols, value(r, c), row(r), rowLabel(r), colLabel(c), max, name }. The chosen query's thickest line is its largest weight.
 */
export function attentionLines(map, chosen, onchoose) {
  const window = (count, around) => {
    const start = Math.max(0, Math.min(around - MOST / 2, count - MOST));
    return [Math.floor(start), Math.min(count, Math.floor(start) + MOST)];
  };
  const [r0, r1] = window(map.rows, Math.max(chosen, 0));
  const [c0, c1] = window(map.cols, Math.max(chosen, 0));
  const rows = Math.max(r1 - r0, c1 - c0);
  const height = rows * HEIGHT + 26;
  const [left, right] = [180, WIDTH - 170];
  const svg = s("svg", { class: "lines", viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, role: "group", "aria-label": map.name });
  svg.append(s("text", { class: "axis", x: left - 8, y: 14, "text-anchor": "end" }, "looks"), s("text", { class: "axis", x: right + 8, y: 14 }, "is looked at"));
  const strongest = chosen < 0 ? map.max : Math.max(...map.row(chosen), 1e-12);
  const y = (place, first) => 26 + (place - first + 0.5) * HEIGHT;
  for (let r = r0; r < r1; r++)
    for (let c = c0; c < c1; c++) {
      const strength = r === chosen ? map.value(r, c) / strongest : (map.value(r, c) / map.max) * (chosen < 0 ? 1 : 0.12);
      if (strength < 0.02) continue;
      svg.append(s("line", {
        class: "link", x1: left, y1: y(r, r0), x2: right, y2: y(c, c0), "stroke-opacity": strength.toFixed(3),
        "stroke-width": (0.5 + 3 * strength).toFixed(2),
      }));
    }
  for (let r = r0; r < r1; r++) {
    const pick = () => onchoose(r);
    const label = s("text", {
      class: r === chosen ? "query chosen" : "query", x: left - 8, y: y(r, r0) + 4, "text-anchor": "end", tabindex: 0,
      role: "button", "aria-pressed": String(r === chosen), onclick: pick,
      onkeydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        pick();
      },
    }, elided(map.rowLabel(r), 22));
    svg.append(label);
  }
  for (let c = c0; c < c1; c++)
    svg.append(s("text", { class: "key", x: right + 8, y: y(c, c0) + 4 }, elided(map.colLabel(c), 22)));
  return svg;
}
