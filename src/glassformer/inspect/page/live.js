/* The live page: asks the server that it came from for explanations. */

import { announce, h, refill } from "./dom.js";

const QUICK_PARTS = ["attention", "lens", "next", "beam"];
const PARTS_OF_VIEW = { why: ["attribution", "ablation"], learning: ["learning"], health: ["health"] };

/** Return the parts of an explanation that the view needs beyond those that are always asked for. */
export function missingParts(data, view) {
  const have = data.options.parts;
  return have ? (PARTS_OF_VIEW[view] ?? []).filter((part) => !have.includes(part)) : [];
}

/** A form for the server's API key. */
export function keyForm(done) {
  const input = h("input", { type: "password", autocomplete: "off", id: "key" });
  return h("form", { class: "controls", onsubmit: (event) => {
    event.preventDefault();
    sessionStorage.setItem("glassformer-key", input.value);
    done();
  } }, h("label", { class: "control" }, h("span", {}, "API key of this server"), input), h("button", { class: "main" }, "Use this key"));
}

/** Return the names of the models that the server has. */
export async function servedModels() {
  const answer = await checked(await fetch("v1/models", { headers: headers() }));
  return answer.data.map((one) => one.id);
}

/** Ask for an explanation. */
export async function askExplanation(model, text, options, signal) {
  const body = JSON.stringify({ text, options });
  return checked(await fetch(`v1/explain/${encodeURIComponent(model)}`, { method: "POST", headers: headers(), body, signal }));
}

/** Ask for one exact row of an attention map. */
export async function askRow(model, body) {
  const address = `v1/attention/${encodeURIComponent(model)}`;
  return checked(await fetch(address, { method: "POST", headers: headers(), body: JSON.stringify(body) }));
}

/**
 * The form of the live page. `show(explanation)` draws one; `state` keeps model, text and switched-off parts.
 * Returns { node, ask(changes), ablate(name), options, row(body) }.
 */
export function createLive(models, state, show) {
  const model = h("select", { id: "model", "aria-label": "Model" }, models.map((name) => h("option", { value: name }, name)));
  model.value = state.choice("model", models);
  const text = h("textarea", { id: "text", rows: 2, dir: "auto", "aria-label": "Text", placeholder: "Write a text and press Enter." });
  text.value = state.get("text");
  const progress = h("progress", { hidden: true, "aria-label": "The model is computing" });
  const message = h("p", { class: "error", role: "alert", hidden: true });
  const off = h("div", { class: "off" });
  let running = null;

  function options() {
    const found = { ablate: state.get("off") ? state.get("off").split(",") : [], parts: [...QUICK_PARTS, ...(PARTS_OF_VIEW[state.get("view")] ?? [])] };
    if (state.get("sample") === "1") found.sample = true;
    for (const name of ["temperature", "top_k", "top_p", "beam", "max_tokens", "position"])
      if (state.get(name) !== "") found[name] = Number(state.get(name));
    return found;
  }

  async function ask(changes = {}) {
    if (text.value !== state.get("text")) changes = { position: "", ...changes };
    state.set({ model: model.value, text: text.value, ...changes });
    running?.abort();
    const mine = (running = new AbortController());
    progress.hidden = false;
    message.hidden = true;
    try {
      show(await askExplanation(model.value, text.value, options(), mine.signal));
      announce("The explanation has been updated.");
    } catch (error) {
      if (error.name === "AbortError") return;
      message.textContent = error.message;
      message.hidden = false;
    } finally {
      if (running === mine) progress.hidden = true;
      refill(off, switchedOff());
    }
  }

  function switchedOff() {
    return options().ablate.map((name) => h("button", { type: "button", class: "small", onclick: () => ablate(name) }, `${name} is off: switch on`));
  }

  /** Switch a part off, or on again. */
  function ablate(name) {
    const names = options().ablate;
    ask({ off: (names.includes(name) ? names.filter((one) => one !== name) : [...names, name]).join(",") });
  }

  const setting = (name, label, limits) => {
    const input = h("input", { type: "number", placeholder: "usual", ...limits, onchange: () => ask({ [name]: input.value }) });
    input.value = state.get(name);
    return h("label", { class: "control" }, h("span", {}, label), input);
  };
  const sample = h("input", { type: "checkbox", checked: state.get("sample") === "1", onchange: () => ask({ sample: sample.checked ? "1" : "" }) });
  const settings = h("details", { class: "settings" }, h("summary", {}, "Settings"), h("div", { class: "controls" },
    setting("beam", "Beam width", { min: 1, max: 20, step: 1 }), setting("max_tokens", "Most tokens", { min: 1, step: 1 }),
    h("label", { class: "control" }, h("span", {}, "Draw at random with the temperature, top-k and top-p of view 7"), sample)));

  const form = h("form", { class: "live", onsubmit: (event) => {
    event.preventDefault();
    ask();
  } }, model, text, h("button", { class: "main" }, "Explain"), progress);
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
  });
  model.addEventListener("change", () => ask({ off: "" }));
  return { node: h("div", {}, form, settings, message, off), ask, ablate, options, row: (body) => askRow(model.value, body) };
}

function headers() {
  const key = sessionStorage.getItem("glassformer-key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function checked(response) {
  if (response.ok) return response.json();
  const body = await response.json().catch(() => null);
  const error = new Error(body?.error?.message ?? `the server answered with status ${response.status}`);
  error.status = response.status;
  throw error;
}
