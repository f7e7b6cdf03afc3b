/* Elements without HTML strings: texts always become text nodes, so that nothing a model writes is read as markup. */

const SVG = "http://www.w3.org/2000/svg";
const MATH = "http://www.w3.org/1998/Math/MathML";

/** Create an HTML element: h("p", { class: "note", onclick: f }, "text", child, [children], null). */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Create a MathML element. */
export function m(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(MATH, tag), attributes, children);
}

/** Add the children to the element: nodes, texts, lists of them; null, undefined and false are left out. */
export function append(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child);
  }
  return element;
}

/** Replace what is in the element. */
export function refill(element, ...children) {
  element.replaceChildren();
  return append(element, ...children);
}

/** Tell people who hear the page what has changed. */
export function announce(text) {
  const place = document.getElementById("status");
  if (place) place.textContent = text;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return append(element, children);
}
