/* Save what is on the page: SVG and PNG of the view, JSON of the numbers. */

import { h, s } from "./dom.js";

/** Return the view as an SVG text: its own drawing if it has one, otherwise the elements inside a foreignObject. */
export function viewAsSvg(view) {
  const drawing = view.svg?.();
  const svg = drawing ? withStyle(drawing.cloneNode(true)) : wrapped(view.node);
  svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(svg);
}

/** Return the SVG text as a PNG blob, `scale` times its size, at most 8,000 pixels on a side. */
export async function svgAsPng(text, scale = 2) {
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  const factor = Math.min(scale, 8000 / Math.max(image.width, image.height));
  const canvas = h("canvas", { width: Math.round(image.width * factor), height: Math.round(image.height * factor) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Offer the content as a download. */
export function save(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** The buttons of a view. `view` is { id, node, svg? }; `data` the explanation. */
export function exportButtons(view, data) {
  const name = `${data.model.name}-${view.id}`.replace(/[^\w.-]+/g, "_");
  const button = (text, onclick) => h("button", { type: "button", class: "small", onclick }, text);
  return h("div", { class: "export", role: "group", "aria-label": "Save this view" },
    button("SVG", () => save(`${name}.svg`, viewAsSvg(view), "image/svg+xml")),
    button("PNG", async () => save(`${name}.png`, await svgAsPng(viewAsSvg(view)))),
    button("JSON", () => save(`${name}.json`, JSON.stringify(view.numbers?.() ?? data, null, 1), "application/json")));
}

function withStyle(svg) {
  const box = svg.viewBox.baseVal;
  if (box?.width) {
    svg.setAttribute("width", box.width);
    svg.setAttribute("height", box.height);
  }
  svg.prepend(s("style", {}, pageStyle()));
  return svg;
}

/** A copy of the elements in an SVG, with the style of the page; canvases become pictures. */
function wrapped(node) {
  const copy = node.cloneNode(true);
  const canvases = node.querySelectorAll("canvas");
  copy.querySelectorAll("canvas").forEach((one, n) => {
    if (!canvases[n].width) return;
    one.replaceWith(h("img", { src: canvases[n].toDataURL(), alt: "", style: { width: canvases[n].style.width } }));
  });
  copy.querySelectorAll(".zoom, .export, details:not([open])").forEach((one) => one.remove());
  const { width, height } = node.getBoundingClientRect();
  const page = h("div", { xmlns: "http://www.w3.org/1999/xhtml", class: "exported" }, h("style", {}, pageStyle()), copy);
  return s("svg", { width: Math.ceil(width) + 32, height: Math.ceil(height) + 32 },
    s("foreignObject", { width: "100%", height: "100%" }, page));
}

/** The style sheet, with the variables of the scheme that is shown now. */
function pageStyle() {
  const root = getComputedStyle(document.documentElement);
  const names = ["paper", "card", "ink", "soft-ink", "line", "accent", "accent-ink", "accent-soft", "heat-low",
    "heat-middle", "heat-high", "minus", "plus", "good", "bad", "warm"];
  const values = names.map((name) => `--${name}:${root.getPropertyValue(`--${name}`)}`).join(";");
  const text = document.querySelector("style").textContent.replace(/@media[^{]*prefers-color-scheme[^]*?\n}\n/, "");
  return `${text}\n:root, svg, .exported { ${values} }`;
}
