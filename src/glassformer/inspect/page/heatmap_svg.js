/* A heat map as an SVG drawing, for export. */

import { s } from "./dom.js";
import { css } from "./colors.js";
import { elided } from "./tokens.js";

const CELL = 22;
const MOST_LABELS = 120;

/** Draw the map; `color(value)` returns [r, g, b]. Without labels where there would be too many. */
export function heatmapSvg(map, color, colors) {
  const labeled = Math.max(map.rows, map.cols) <= MOST_LABELS;
  const cell = labeled ? CELL : Math.max(1, Math.round(1200 / Math.max(map.rows, map.cols)));
  const [left, top] = labeled ? [130, 90] : [10, 10];
  const [width, height] = [left + map.cols * cell + 60, top + map.rows * cell + 10];
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" },
    s("title", {}, map.name), s("rect", { width, height, fill: css(colors.paper) }));
  for (let r = 0; r < map.rows; r++)
    for (let c = 0; c < map.cols; c++)
      svg.append(s("rect", { x: left + c * cell, y: top + r * cell, width: cell, height: cell, fill: css(color(map.value(r, c))) }));
  if (!labeled) return svg;
  const text = { "font-family": "sans-serif", "font-size": 12, fill: css(colors.ink) };
  for (let r = 0; r < map.rows; r++)
    svg.append(s("text", { ...text, x: left - 6, y: top + (r + 0.5) * cell + 4, "text-anchor": "end" }, elided(map.rowLabel(r), 20)));
  for (let c = 0; c < map.cols; c++) {
    const [x, y] = [left + (c + 0.5) * cell, top - 6];
    svg.append(s("text", { ...text, x, y, transform: `rotate(-56 ${x} ${y})` }, elided(map.colLabel(c), 14)));
  }
  return svg;
}
