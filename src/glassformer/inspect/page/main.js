/* The page: reads the explanation, or asks the server for one, and shows the chosen view. */

import { announce, h, refill } from "./dom.js";
import { attentionView } from "./view_attention.js";
import { createLive, keyForm, missingParts, servedModels } from "./live.js";
import { createState } from "./state.js";
import { flowView } from "./view_flow.js";
import { framed, missing } from "./frame.js";
import { headView } from "./view_head.js";
import { healthView } from "./view_health.js";
import { learningView } from "./view_learning.js";
import { lensView } from "./view_lens.js";
import { format } from "./numbers.js";
import { modelFacts } from "./flow_blocks.js";
import { nextView } from "./view_next.js";
import { positionsView } from "./view_positions.js";
import { tokenizationView } from "./view_tokenization.js";
import { whyView } from "./view_why.js";

const VIEWS = [
  ["flow", "The flow", flowView],
  ["tokenization", "Tokenization", tokenizationView],
  ["positions", "Positions", positionsView],
  ["attention", "Attention", attentionView],
  ["head", "Inside one head", headView],
  ["lens", "Layer by layer", lensView],
  ["next", "Next token", nextView],
  ["why", "Why this word", whyView],
  ["learning", "How it learned", learningView],
  ["health", "Is it healthy?", healthView],
];
const VERSION = 1;

const excerpts = JSON.parse(document.getElementById("excerpts").textContent);
const state = createState(() => draw());
let data = null;
let live = null;

function chosenView() {
  return state.choice("view", VIEWS.map(([id]) => id));
}

function drawHeader() {
  const written = data ? h("div", { class: "texts" },
    live ? null : h("p", {}, h("span", { class: "tag" }, "input"), h("span", { class: "text", dir: "auto" }, data.options.text)),
    h("p", {}, h("span", { class: "tag" }, "output"), h("output", { class: "text", dir: "auto" }, data.output.text || "(nothing)")),
    data.baseline ? h("p", {}, h("span", { class: "tag" }, "before"), h("span", { class: "text", dir: "auto" }, before())) : null,
    questions()) : null;
  refill(document.getElementById("header"),
    h("div", { class: "brand" }, h("h1", {}, data ? data.model.name : "Glassformer explorer"),
      data ? h("dl", { class: "facts" }, modelFacts(data).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))) : null),
    live?.node, written);
}

/** What the whole model answered, and how the loss has changed without the parts that are off. */
function before() {
  const { output, loss } = data.baseline;
  const text = output?.text ?? String(output);
  const losses = [loss, data.output.loss].every((one) => typeof one === "number") ? ` (loss ${format(loss)} → ${format(data.output.loss)})` : "";
  return (text === data.output.text ? "the same text" : text) + losses;
}

/** Questions that a reader may have first, as links. */
function questions() {
  const all = [
    ["Where did it look?", "attention"], ["Why this result?", "why"],
    data.beam ? ["What else did the beam consider?", "next", "beam"] : data.next ? ["What else was likely?", "next"] : null,
    ["What if a head were missing?", "why", "ablation"],
  ];
  return h("p", { class: "questions" }, all.filter(Boolean).map(([text, view, part]) => h("a", { href: `#view=${view}`, onclick: (event) => {
    event.preventDefault();
    go({ view });
    document.getElementById(part)?.scrollIntoView();
  } }, text)));
}

function drawViews() {
  refill(document.getElementById("views"), h("ol", {}, VIEWS.map(([id, title]) => h("li", {},
    h("a", { href: `#view=${id}`, "aria-current": id === chosenView() ? "page" : null, "data-view": id, onclick: (event) => {
      event.preventDefault();
      go({ view: id });
    } }, title)))));
}

function drawView() {
  const main = document.getElementById("main");
  if (!data) return refill(main, missing("Write a text above and press Enter: the model's every step appears here."));
  if (data.version !== VERSION) return refill(main, missing(`This page reads version ${VERSION} of explanations, and was given version ${data.version}.`));
  const [, title, build] = VIEWS.find(([id]) => id === chosenView());
  document.title = `${title} · ${data.model.name} · Glassformer`;
  const context = { data, state, live, excerpts, go };
  return refill(main, framed(build(context), context));
}

function draw() {
  drawHeader();
  drawViews();
  drawView();
  showChosen();
}

/** Scroll the row of views on a small screen to the chosen one. */
function showChosen() {
  const row = document.querySelector("nav ol");
  const chosen = row.querySelector("[aria-current]");
  row.scrollLeft = chosen.offsetLeft - (row.clientWidth - chosen.offsetWidth) / 2;
}

/** Go to another view, or change what the view shows. */
function go(changes) {
  state.set(changes);
  if (live && data && missingParts(data, chosenView()).length) live.ask();
  drawViews();
  drawView();
  announce(document.getElementById("view-title")?.textContent ?? "");
  document.getElementById("main").focus({ preventScroll: true });
  showChosen();
  if (window.scrollY > document.getElementById("main").offsetTop) document.getElementById("main").scrollIntoView();
}

async function start() {
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawView);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  data = await embedded();
  draw();
  if (!data) await goLive();
}

/** The explanation that is a part of the page, in base64 of zlib's format; null if there is none. */
async function embedded() {
  const text = document.getElementById("explanation").textContent;
  if (!text) return null;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

async function goLive() {
  try {
    const models = await servedModels();
    live = createLive(models, state, (found) => {
      data = found;
      draw();
    });
    drawHeader();
    if (state.get("text")) await live.ask();
  } catch (error) {
    refill(document.getElementById("main"), missing(`No explanation: ${error.message}`), error.status === 401 ? keyForm(goLive) : null);
  }
}

start();
