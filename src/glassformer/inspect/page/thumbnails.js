/* All layers and heads as small pictures, drawn when they come into sight. */

import { h } from "./dom.js";
import { tensor } from "./arrays.js";
import { heat, palette } from "./colors.js";
import { format } from "./numbers.js";

const SIZE = 44;

/** A table of thumbnails: one row per layer, one column per head. onchoose(layer, head). */
export function thumbnails(group, chosen, onchoose) {
  const colors = palette();
  const waiting = new Map();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries)
      if (entry.isIntersecting) {
        waiting.get(entry.target)?.();
        waiting.delete(entry.target);
        observer.unobserve(entry.target);
      }
  }, { rootMargin: "1200px" });
  const heads = tensor(group.maps[0].weights).shape[0];
  const grid = h("div", { class: "thumbnails", style: { "--heads": heads }, role: "group", "aria-label": `${group.title}: all layers and heads` });
  group.maps.forEach((map, layer) => {
    grid.append(h("span", { class: "thumb-label" }, `layer ${layer}`));
    for (let head = 0; head < heads; head++) {
      const canvas = h("canvas", { width: SIZE, height: SIZE, "aria-hidden": "true" });
      const kind = map.head_kinds?.[head];
      const name = `Layer ${layer}, head ${head}` + (kind ? `: ${kind.kind}, ${format(kind.score)}` : "");
      const button = h("button", {
        type: "button", class: "thumb", title: name, "aria-label": name,
        "aria-pressed": String(layer === chosen.layer && head === chosen.head), onclick: () => onchoose(layer, head),
      }, canvas);
      waiting.set(button, () => drawThumbnail(canvas, tensor(map.weights), head, colors));
      observer.observe(button);
      grid.append(button);
    }
  });
  return h("div", { class: "thumb-scroll", tabindex: 0, role: "region", "aria-label": "Thumbnails of all heads" }, grid);
}

/** Each pixel is the largest weight of the cells that it covers. */
function drawThumbnail(canvas, weights, head, colors) {
  const [, rows, cols] = weights.shape;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(SIZE, SIZE);
  for (let y = 0; y < SIZE; y++) {
    const [r0, r1] = span(y, rows);
    for (let x = 0; x < SIZE; x++) {
      const [c0, c1] = span(x, cols);
      let most = 0;
      for (let r = r0; r < r1; r++) for (let c = c0; c < c1; c++) most = Math.max(most, weights.at(head, r, c));
      const [red, green, blue] = heat(colors, most);
      pixels.data.set([red, green, blue, 255], 4 * (y * SIZE + x));
    }
  }
  context.putImageData(pixels, 0, 0);
}

function span(pixel, count) {
  const start = Math.floor((pixel * count) / SIZE);
  return [start, Math.max(start + 1, Math.floor(((pixel + 1) * count) / SIZE))];
}
