/* A heat map on a canvas: of any size, with zoom, keyboard, a spoken cell, and labels only where there is room. */

import { announce, h, refill } from "./dom.js";
import { diverging, heat, palette, readable, css } from "./colors.js";
import { clamp, format } from "./numbers.js";
import { heatmapSvg } from "./heatmap_svg.js";

const LARGEST_CELL = 46;
const SMALLEST_LABELED = 9;

/**
 * Create a heat map.
 * map: { rows, cols, value(r, c), rowLabel(r), colLabel(c), max, signed, name, describe(r, c), stretch }; the cells are
 * squares unless `stretch` is true.
 * onpick(r, c) is called for a click or Enter, onpoint(r, c) when the pointer or the cursor moves.
 * Returns { node, update(map), point(r, c), svg() }.
 */
export function createHeatmap(map, { onpick = () => {}, onpoint = () => {}, tallest = 560 } = {}) {
  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heat map" });
  const tools = h("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
    zoomButton("−", "Zoom out", () => zoomBy(1 / 1.5)), zoomButton("+", "Zoom in", () => zoomBy(1.5)),
    zoomButton("fit", "Show the whole map", () => zoomTo(1)));
  const legend = h("div", { class: "legend" });
  const node = h("div", { class: "heatmap" }, canvas, h("div", { class: "map-foot" }, legend, tools));
  const view = { zoom: 1, x: 0, y: 0, cell: 1, unit: 1, aspect: 1, left: 0, top: 0, width: 0, height: 0 };
  let cursor = { r: 0, c: 0, shown: false };
  let image = null;
  let colors = palette();

  /** The font of labels; its size follows that of the page's text. */
  function font(size) {
    return `${size * view.unit}px system-ui, sans-serif`;
  }

  function layout() {
    const width = node.clientWidth || 600;
    const unit = (view.unit = Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 16 || 1);
    const [largestCell, highest] = [LARGEST_CELL * unit, tallest * unit];
    const context = canvas.getContext("2d");
    context.font = font(13);
    const longest = (label, count) => {
      let most = 0;
      for (let n = 0; n < Math.min(count, 200); n++) most = Math.max(most, context.measureText(label(n)).width);
      return most;
    };
    view.left = Math.min(longest(map.rowLabel, map.rows) + 12, (width < 500 ? 110 : 190) * unit);
    view.top = Math.min(longest(map.colLabel, map.cols) * 0.8 + 16, 110 * unit);
    const right = Math.min(60 * unit, view.top * 0.55);
    view.cell = clamp(Math.min((width - view.left - right) / map.cols, largestCell), 0.2, largestCell);
    if (map.rows * view.cell > highest) view.cell = Math.min(view.cell, Math.max(highest / map.rows, 1));
    view.aspect = map.stretch ? clamp((width - view.left - right) / map.cols / view.cell, 1, 12) : 1;
    view.width = width;
    view.height = Math.min(highest, map.rows * view.cell) + view.top + 4;
    const density = window.devicePixelRatio || 1;
    canvas.width = Math.round(view.width * density);
    canvas.height = Math.round(view.height * density);
    canvas.style.width = `${view.width}px`;
    canvas.style.height = `${view.height}px`;
    context.setTransform(density, 0, 0, density, 0, 0);
  }

  function paint() {
    colors = palette();
    image = document.createElement("canvas");
    image.width = map.cols;
    image.height = map.rows;
    const context = image.getContext("2d");
    const pixels = context.createImageData(map.cols, map.rows);
    for (let r = 0, n = 0; r < map.rows; r++)
      for (let c = 0; c < map.cols; c++, n += 4) {
        const [red, green, blue] = color(map.value(r, c));
        pixels.data.set([red, green, blue, 255], n);
      }
    context.putImageData(pixels, 0, 0);
    drawLegend();
  }

  /** What the colors mean: the numbers at the ends of the scale. */
  function drawLegend() {
    const ends = map.signed ? [format(-map.max), format(map.max)] : ["0", format(map.max)];
    refill(legend, ends[0], h("span", { class: map.signed ? "scale signed" : "scale", "aria-hidden": "true" }), ends[1]);
  }

  function color(value) {
    const share = map.max ? value / map.max : 0;
    return map.signed ? diverging(colors, share) : heat(colors, share);
  }

  function draw() {
    const context = canvas.getContext("2d");
    const size = view.cell * view.zoom;
    const step = size * view.aspect;
    const [wide, high] = [view.width - view.left, view.height - view.top];
    view.x = clamp(view.x, 0, Math.max(0, map.cols * step - wide));
    view.y = clamp(view.y, 0, Math.max(0, map.rows * size - high));
    context.clearRect(0, 0, view.width, view.height);
    context.save();
    context.beginPath();
    context.rect(view.left, view.top, wide, high);
    context.clip();
    context.imageSmoothingEnabled = size < 1;
    context.drawImage(image, view.left - view.x, view.top - view.y, map.cols * step, map.rows * size);
    const [r0, r1] = [Math.floor(view.y / size), Math.min(map.rows, Math.ceil((view.y + high) / size))];
    const [c0, c1] = [Math.floor(view.x / step), Math.min(map.cols, Math.ceil((view.x + wide) / step))];
    if (size >= 12) drawGrid(context, size, step, r0, r1, c0, c1);
    if (size >= 20 * view.unit && step >= 42 * view.unit) drawNumbers(context, size, step, r0, r1, c0, c1);
    if (cursor.shown) drawCursor(context, size, step);
    context.restore();
    drawLabels(context, size, step, r0, r1, c0, c1);
    canvas.setAttribute("aria-label", `${map.name}. Arrow keys move, plus and minus zoom, Enter chooses.`);
  }

  function drawGrid(context, size, step, r0, r1, c0, c1) {
    context.strokeStyle = css(colors.paper);
    context.lineWidth = 1;
    context.beginPath();
    for (let r = r0; r <= r1; r++) {
      context.moveTo(view.left + c0 * step - view.x, view.top + r * size - view.y);
      context.lineTo(view.left + c1 * step - view.x, view.top + r * size - view.y);
    }
    for (let c = c0; c <= c1; c++) {
      context.moveTo(view.left + c * step - view.x, view.top + r0 * size - view.y);
      context.lineTo(view.left + c * step - view.x, view.top + r1 * size - view.y);
    }
    context.stroke();
  }

  function drawNumbers(context, size, step, r0, r1, c0, c1) {
    const digits = map.max >= 0.095 ? 2 : map.max >= 0.0095 ? 3 : 4;
    context.font = font(14 - digits);
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let r = r0; r < r1; r++)
      for (let c = c0; c < c1; c++) {
        context.fillStyle = css(readable(color(map.value(r, c))));
        const [x, y] = [view.left + (c + 0.5) * step - view.x, view.top + (r + 0.5) * size - view.y];
        context.fillText(map.value(r, c).toFixed(digits).replace(/^-(?=0\.0+$)/, "").replace("-", "−"), x, y);
      }
  }

  function drawCursor(context, size, step) {
    const [x, y] = [view.left + cursor.c * step - view.x, view.top + cursor.r * size - view.y];
    context.strokeStyle = css(colors.ink);
    context.lineWidth = 1;
    context.strokeRect(view.left - view.x, y, map.cols * step, size);
    context.lineWidth = 2;
    context.strokeRect(x, y, step, size);
  }

  function drawLabels(context, size, step, r0, r1, c0, c1) {
    const every = (room) => Math.max(1, Math.ceil(SMALLEST_LABELED / room) * (room < SMALLEST_LABELED ? 2 : 1));
    context.font = font(clamp((size / view.unit) * 0.7, 10, 13));
    context.textBaseline = "middle";
    context.textAlign = "right";
    const shown = (n, room, chosen) => n % every(room) === 0 || chosen;
    for (let r = r0; r < r1; r++) {
      const chosen = cursor.shown && r === cursor.r;
      if (!shown(r, size, chosen)) continue;
      context.fillStyle = css(chosen ? colors.ink : colors.soft);
      const y = view.top + (r + 0.5) * size - view.y;
      if (y > view.top - 2) context.fillText(fit(context, map.rowLabel(r), view.left - 8), view.left - 5, y);
    }
    context.textAlign = "left";
    for (let c = c0; c < c1; c++) {
      const chosen = cursor.shown && c === cursor.c;
      if (!shown(c, step, chosen)) continue;
      const x = view.left + (c + 0.5) * step - view.x;
      if (x < view.left - 2) continue;
      context.save();
      context.translate(x, view.top - 5);
      context.rotate(-Math.PI / 3.2);
      context.fillStyle = css(chosen ? colors.ink : colors.soft);
      context.fillText(fit(context, map.colLabel(c), (view.top - 8) * 1.15), 0, 0);
      context.restore();
    }
  }

  function fit(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    const letters = Array.from(text);
    while (letters.length > 1 && context.measureText(letters.join("") + "…").width > width) letters.pop();
    return letters.join("") + "…";
  }

  function zoomBy(factor, x = null, y = null) {
    zoomTo(clamp(view.zoom * factor, 1, Math.max(1, 64 / view.cell)), x, y);
  }

  function zoomTo(zoom, x = null, y = null) {
    const [wide, high] = [(view.width - view.left) / 2, (view.height - view.top) / 2];
    const [px, py] = [x ?? wide, y ?? high];
    const factor = zoom / view.zoom;
    view.x = (view.x + px) * factor - px;
    view.y = (view.y + py) * factor - py;
    view.zoom = zoom;
    draw();
  }

  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const size = view.cell * view.zoom;
    const c = Math.floor((event.clientX - box.left - view.left + view.x) / (size * view.aspect));
    const r = Math.floor((event.clientY - box.top - view.top + view.y) / size);
    return event.clientX - box.left >= view.left && event.clientY - box.top >= view.top &&
      r >= 0 && c >= 0 && r < map.rows && c < map.cols ? { r, c } : null;
  }

  function moveTo(r, c, spoken) {
    cursor = { r: clamp(r, 0, map.rows - 1), c: clamp(c, 0, map.cols - 1), shown: true };
    canvas.title = map.describe(cursor.r, cursor.c);
    if (spoken) announce(canvas.title);
    draw();
  }

  function show(r, c) {
    const size = view.cell * view.zoom;
    const step = size * view.aspect;
    view.x = clamp(view.x, (c + 1) * step - (view.width - view.left), c * step);
    view.y = clamp(view.y, (r + 1) * size - (view.height - view.top), r * size);
  }

  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (step) {
      const next = cursor.shown ? [cursor.r + step[0], cursor.c + step[1]] : [0, 0];
      show(clamp(next[0], 0, map.rows - 1), clamp(next[1], 0, map.cols - 1));
      moveTo(next[0], next[1], true);
      onpoint(cursor.r, cursor.c);
    } else if (event.key === "+" || event.key === "=") zoomBy(1.5);
    else if (event.key === "-") zoomBy(1 / 1.5);
    else if (event.key === "0") zoomTo(1);
    else if (event.key === "Enter" && cursor.shown) onpick(cursor.r, cursor.c);
    else return;
    event.preventDefault();
  });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, from: { ...view }, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && view.zoom > 1 && event.buttons) {
      drag.moved ||= Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > 4;
      view.x = drag.from.x - (event.clientX - drag.x);
      view.y = drag.from.y - (event.clientY - drag.y);
      draw();
      return;
    }
    const cell = cellAt(event);
    if (!cell || (cursor.shown && cell.r === cursor.r && cell.c === cursor.c)) return;
    moveTo(cell.r, cell.c, false);
    onpoint(cell.r, cell.c);
  });
  canvas.addEventListener("pointerup", (event) => {
    const cell = cellAt(event);
    if (cell && !drag?.moved) {
      moveTo(cell.r, cell.c, true);
      onpick(cell.r, cell.c);
    }
    drag = null;
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoomBy(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.clientX - box.left - view.left, event.clientY - box.top - view.top);
  }, { passive: false });

  function update(next = map) {
    map = next;
    cursor = { r: Math.min(cursor.r, map.rows - 1), c: Math.min(cursor.c, map.cols - 1), shown: cursor.shown };
    paint();
    layout();
    draw();
  }

  new ResizeObserver(() => {
    layout();
    draw();
  }).observe(node);
  paint();
  return { node, update, point: (r, c) => moveTo(r, c, false), svg: () => heatmapSvg(map, color, colors) };
}

function zoomButton(text, name, onclick) {
  return h("button", { type: "button", title: name, "aria-label": name, onclick }, text);
}
