/* View: how the model knows the order of the tokens. */

import { h, refill } from "./dom.js";
import { asTensor, tensor } from "./arrays.js";
import { choose, missing } from "./frame.js";
import { createHeatmap } from "./heatmap.js";
import { format } from "./numbers.js";

/** Build the view. */
export function positionsView(context) {
  const { data, state } = context;
  const positions = data.positions;
  const kind = positions?.kind ?? data.model.positions;
  const base = {
    id: "positions", title: `Positions: ${kind}`, formulaName: kind, code: [kind],
    intro: "Attention alone does not know which token comes first, so a model needs a way to tell places apart. " +
      `${positions?.explanation ?? "This model uses none."}`,
  };
  if (!positions?.picture) return { ...base, node: missing("There is no picture of this model's positions.") };
  const picture = tensor(positions.picture);
  const body = h("div");
  let heatmap = null;
  let map = null;

  function update() {
    const deep = picture.shape.length === 3;
    const page = deep ? state.index("page", picture.shape[0]) : 0;
    const [rows, cols] = picture.shape.slice(-2);
    const values = asTensor([rows, cols], picture.data.subarray(page * rows * cols, (page + 1) * rows * cols));
    const [down, across] = positions.axes.slice(-2);
    const place = (c) => c * (positions.step ?? 1) + (positions.first_column ?? 0);
    const most = values.data.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
    map = {
      rows, cols, value: values.at, rowLabel: String, colLabel: (c) => String(place(c)), max: most, signed: true, stretch: true,
      name: `${kind} positions: ${down} downwards, ${across} across; largest size ${format(most)}`,
      describe: (r, c) => `${down} ${r}, ${across} ${place(c)}: ${format(values.at(r, c))}`,
    };
    const reading = h("p", { class: "sentence", "aria-live": "off" }, "Point at a cell to read its number.");
    heatmap = createHeatmap(map, { onpoint: (r, c) => { reading.textContent = map.describe(r, c); } });
    refill(body, deep ? h("div", { class: "controls" }, choose(positions.axes[0], Array.from({ length: picture.shape[0] }, (_, n) => [n, `${positions.axes[0]} ${n}`]), page, (value) => {
      state.set({ page: value });
      update();
    })) : null,
    h("p", { class: "note" }, `Down: ${down}. Across: ${across}. `, h("span", { class: "key plus" }), " positive, ", h("span", { class: "key minus" }), ` negative; the strongest color is ${format(most)}.`),
    heatmap.node, reading);
    requestAnimationFrame(() => heatmap.update(map));
  }

  update();
  return { ...base, node: body, svg: () => heatmap.svg(), numbers: () => ({ kind, axes: positions.axes, shape: picture.shape, values: [...picture.data] }) };
}
