/* A chart of lines over the updates of a run. */

import { s } from "./dom.js";
import { format, grouped } from "./numbers.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT] = [640, 260, 62, 36, 110];

/** Draw the lines { name: [[x, y], ...] }, with a mark at `x` (or null). */
export function lineChart(title, lines, mark) {
  const points = Object.values(lines).flat();
  const [x0, x1] = [Math.min(...points.map(([x]) => x)), Math.max(...points.map(([x]) => x))];
  const [y0, y1] = [Math.min(...points.map(([, y]) => y)), Math.max(...points.map(([, y]) => y))];
  const across = (x) => LEFT + ((x - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - RIGHT);
  const down = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0 || 1)) * (HEIGHT - BOTTOM - 14);
  const summary = Object.entries(lines).map(([name, line]) => `${name} from ${format(line[0][1])} to ${format(line[line.length - 1][1])}`).join("; ");
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${summary}` });
  for (const y of [y0, (y0 + y1) / 2, y1])
    svg.append(s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: down(y), y2: down(y) }), s("text", { class: "axis", x: LEFT - 6, y: down(y) + 4, "text-anchor": "end" }, Number(y.toPrecision(3)).toString()));
  for (const x of [x0, x1]) svg.append(s("text", { class: "axis", x: across(x), y: HEIGHT - 14, "text-anchor": "middle" }, grouped(x)));
  svg.append(s("text", { class: "axis", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 14, "text-anchor": "middle" }, "updates"));
  if (mark !== null) svg.append(s("line", { class: "mark", x1: across(mark), x2: across(mark), y1: 8, y2: HEIGHT - BOTTOM }));
  let last = -20;
  Object.entries(lines).sort(([, a], [, b]) => down(a[a.length - 1][1]) - down(b[b.length - 1][1])).forEach(([name, line], n) => {
    svg.append(s("polyline", { class: `curve curve-${n % 4}`, points: line.map(([x, y]) => `${across(x).toFixed(1)},${down(y).toFixed(1)}`).join(" ") }));
    last = Math.max(down(line[line.length - 1][1]) + 4, last + 15);
    svg.append(s("text", { class: `label curve-${n % 4}`, x: WIDTH - RIGHT + 8, y: last }, name));
  });
  return svg;
}
