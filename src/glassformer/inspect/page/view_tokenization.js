/* View: how the text was cut into tokens. */

import { h, refill } from "./dom.js";
import { slider, table } from "./frame.js";
import { grouped } from "./numbers.js";
import { exactToken, visible } from "./tokens.js";

const MOST_ROWS = 200;

/** Build the view. */
export function tokenizationView(context) {
  const { data, state } = context;
  const cut = data.tokenization;
  const parts = [["The input", data.text.source]];
  if (data.text.target) parts.push(["The output", data.text.target]);
  const node = h("div", {}, parts.map(([title, tokens]) => [
    h("h3", {}, `${title}: ${grouped(tokens.pieces.length)} tokens`), ribbon(tokens), idTable(title, tokens)]),
    cut?.merges?.length ? merges(cut, state) : null);
  return {
    id: "tokenization", title: "Tokenization: how the text was cut", node, formulaName: "tokenization", code: ["tokenization"],
    intro: `The model does not read letters but tokens: pieces of text that have a number in its vocabulary of ${grouped(data.model.vocabulary)}. ` +
      `This tokenizer is of the kind ${cut?.kind ?? "unknown"}; marks such as ␣ stand for spaces, and tokens in italics were added around the text.`,
    numbers: () => ({ tokenization: cut, text: data.text }),
  };
}

function ribbon(tokens) {
  return h("p", { class: "ribbon", dir: "auto" }, tokens.pieces.slice(0, 2000).map((piece, n) =>
    h("span", { class: `piece piece-${n % 4}${tokens.special[n] ? " special" : ""}`, title: `${n}: id ${tokens.ids[n]}` },
      visible(piece), h("small", {}, String(tokens.ids[n])))));
}

function idTable(title, tokens) {
  const rows = tokens.pieces.slice(0, MOST_ROWS).map((piece, n) => {
    const range = tokens.offsets?.[n];
    return [n, exactToken(piece), tokens.ids[n], range ? `${range[0]}–${range[1]}` : "–"];
  });
  const more = tokens.pieces.length - rows.length;
  return h("details", {}, h("summary", {}, "As a table"),
    table(`${title}: tokens`, ["place", "token", "id", "letters"], rows, { numeric: [0, 2] }),
    more > 0 ? h("p", { class: "note" }, `${grouped(more)} more tokens are in the JSON.`) : null);
}

/** The merges, applied one after the other: a slider stops the cutting in the middle. */
function merges(cut, state) {
  const steps = cut.merges;
  const place = h("div");
  const show = (count) => refill(place, count === 0 ? h("p", { class: "note" }, "No merge yet: the text is cut into single characters or bytes.")
    : table(`${count > MOST_ROWS ? `The last ${MOST_ROWS} of the first ${count}` : `The first ${count}`} of ${steps.length} merges, in the order in which they were applied`, ["step", "left", "right", "result", "rank", "in"],
      steps.slice(Math.max(0, count - MOST_ROWS), count).map((one, n) => [Math.max(0, count - MOST_ROWS) + n + 1, exactToken(one.left), exactToken(one.right), exactToken(one.result), one.rank, cut.pieces[one.word]?.word === undefined ? "" : exactToken(cut.pieces[one.word].word)]),
      { numeric: [0, 4] }));
  const value = state.get("merges") === "" ? steps.length : state.index("merges", steps.length + 1);
  show(value);
  return h("div", {}, h("h3", {}, "Merges in order"),
    h("p", {}, "The tokenizer starts with single characters or bytes and joins the pair that was learned first (lowest rank), again and again."),
    slider("Merges applied", { min: 0, max: steps.length, step: 1, value }, (count) => {
      state.set({ merges: count });
      show(count);
    }), place);
}
