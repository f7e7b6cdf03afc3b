/* Tokens as the page shows them. */

import { h } from "./dom.js";

/** Make spaces, line ends and empty tokens visible. */
export function visible(text) {
  if (text === "") return "∅";
  return text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍");
}

/** The token for a label or a sentence: without the space before a word, which only lists of tokens need. */
export function plain(text) {
  return visible(/^ \S/.test(text) ? text.slice(1) : text);
}

/** Shorten a token for a label. */
export function short(text, most = 12) {
  return elided(plain(text), most);
}

/** Shorten a text to `most` letters. */
export function elided(text, most) {
  const letters = Array.from(text);
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
}

/** A token in running text. */
export function tokenName(text) {
  return h("b", { class: "token-name", dir: "auto" }, plain(text));
}

/** A token of a text in running text, with its place if the text has the same token elsewhere. */
export function tokenAt(tokens, place) {
  const piece = tokens.pieces[place];
  const isRepeated = tokens.pieces.indexOf(piece) !== tokens.pieces.lastIndexOf(piece);
  return [tokenName(piece), isRepeated ? h("sub", { class: "place", title: `place ${place}` }, String(place)) : null];
}

/** A token with its spaces, where tokens must be told apart. */
export function exactToken(text) {
  return h("b", { class: "token-name", dir: "auto" }, visible(text));
}

/** A row of tokens that are buttons; `pressed` is the place of the chosen one, `bar(n)` a share from 0 to 1 or null. */
export function tokenStrip({ tokens, label, pressed = -1, bar = null, title = null, onchoose, onhover = null }) {
  const strip = h("div", { class: "strip", role: "group", "aria-label": label });
  tokens.pieces.forEach((piece, n) => {
    const share = bar ? bar(n) : null;
    const button = h(
      "button",
      {
        type: "button", class: tokens.special[n] ? "token special" : "token", "aria-pressed": String(n === pressed),
        "data-place": n, title: title ? title(n) : null, onclick: () => onchoose(n),
        onmouseenter: onhover ? () => onhover(n) : null,
      },
      h("span", { dir: "auto" }, plain(piece)),
      share === null ? null : h("span", { class: "bar", "aria-hidden": "true", style: { "--share": share.toFixed(4) } }),
    );
    strip.append(button);
  });
  strip.addEventListener("keydown", (event) => moveFocus(event, strip));
  return strip;
}

/** Arrow keys go from token to token. */
function moveFocus(event, strip) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const buttons = [...strip.querySelectorAll("button")];
  const place = buttons.indexOf(document.activeElement);
  if (!step || place < 0) return;
  event.preventDefault();
  buttons[Math.min(buttons.length - 1, Math.max(0, place + step))].focus();
}
