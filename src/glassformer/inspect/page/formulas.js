/* The formulas, as MathML. */

import { m } from "./dom.js";

const i = (text) => m("mi", {}, text);
const o = (text) => m("mo", {}, text);
const n = (text) => m("mn", {}, text);
const word = (text) => m("mtext", {}, text);
const row = (...parts) => m("mrow", {}, ...parts);
const sub = (a, b) => m("msub", {}, a, b);
const sup = (a, b) => m("msup", {}, a, b);
const frac = (a, b) => m("mfrac", {}, a, b);
const root = (a) => m("msqrt", {}, a);
const call = (name, ...parts) => row(word(name), o("("), ...parts, o(")"));
const under = (name, below) => m("munder", {}, word(name), below);
const sum = (below) => m("munder", {}, o("∑"), below);

const FORMULAS = {
  flow: () => [
    row(i("x"), o("←"), i("x"), o("+"), call("attention", call("norm", i("x")))),
    row(i("x"), o("←"), i("x"), o("+"), call("feed-forward", call("norm", i("x")))),
    row(word("post-norm: "), i("x"), o("←"), call("norm", i("x"), o("+"), call("sub-layer", i("x")))),
  ],
  attention: () => [
    row(call("attention", i("Q"), o(","), i("K"), o(","), i("V")), o("="),
      call("softmax", frac(row(i("Q"), sup(i("K"), i("T"))), root(sub(i("d"), i("k")))), o("+"), i("B")), i("V")),
    row(word("rollout: "), i("R"), o("="), sub(i("Â"), i("L")), o("⋯"), sub(i("Â"), n("1")), o(","),
      i("Â"), o("="), frac(n("1"), n("2")), o("("), i("A"), o("+"), i("I"), o(")")),
  ],
  head: () => [
    row(sub(i("s"), i("j")), o("="), i("scale"), o("·"), i("q"), o("·"), sub(i("k"), i("j")), o("+"), sub(i("b"), i("j"))),
    row(sub(i("w"), i("j")), o("="), frac(sup(i("e"), sub(i("s"), i("j"))), row(sum(i("l")), sup(i("e"), sub(i("s"), i("l")))))),
    row(word("output"), o("="), sum(i("j")), sub(i("w"), i("j")), sub(i("v"), i("j"))),
  ],
  sinusoidal: () => [
    row(sub(i("P"), row(i("t"), o(","), n("2"), i("i"))), o("="), call("sin", frac(i("t"), sup(n("10000"), row(n("2"), i("i"), o("/"), i("d")))))),
    row(sub(i("P"), row(i("t"), o(","), n("2"), i("i"), o("+"), n("1"))), o("="), call("cos", frac(i("t"), sup(n("10000"), row(n("2"), i("i"), o("/"), i("d")))))),
  ],
  learned: () => [row(sub(i("x"), i("t")), o("="), sub(i("E"), word("token")), o("+"), sub(i("P"), i("t")))],
  rotary: () => [
    row(sub(i("q"), i("t")), o("·"), sub(i("k"), i("u")), o("="), sup(i("q"), i("T")), call("rotation", o("("), i("u"), o("−"), i("t"), o(")"), sub(i("θ"), i("i"))), i("k")),
    row(sub(i("θ"), i("i")), o("="), sup(i("base"), row(o("−"), n("2"), i("i"), o("/"), i("d")))),
  ],
  relative: () => [row(sub(i("s"), row(i("t"), i("u"))), o("="), sub(i("q"), i("t")), o("·"), sub(i("k"), i("u")), o("+"), sub(i("b"), call("bucket", i("u"), o("−"), i("t"))))],
  alibi: () => [row(sub(i("s"), row(i("t"), i("u"))), o("="), i("scale"), o("·"), sub(i("q"), i("t")), o("·"), sub(i("k"), i("u")), o("−"), sub(i("m"), word("head")), o("|"), i("t"), o("−"), i("u"), o("|"))],
  disentangled: () => [row(sub(i("s"), row(i("t"), i("u"))), o("="), sub(i("q"), i("t")), o("·"), sub(i("k"), i("u")), o("+"), sub(i("q"), i("t")), o("·"), sub(i("r"), row(i("t"), o("−"), i("u"))), o("+"), sub(i("k"), i("u")), o("·"), sub(i("r"), row(i("u"), o("−"), i("t"))))],
  lens: () => [
    row(sub(i("p"), i("l")), o("="), call("softmax", sub(i("W"), word("out")), call("norm", sub(i("x"), i("l"))))),
    row(word("encoder: "), call("cos", sub(i("x"), i("l")), o(","), sub(i("E"), word("token")))),
  ],
  next: () => [
    row(sub(i("p"), i("i")), o("="), frac(sup(i("e"), row(sub(i("z"), i("i")), o("/"), i("T"))), row(sum(i("j")), sup(i("e"), row(sub(i("z"), i("j")), o("/"), i("T")))))),
    row(word("score"), o("="), frac(row(sum(i("t")), word("log "), call("p", sub(i("y"), i("t")))), sup(word("length"), i("α")))),
  ],
  why: () => [
    row(word("gradient × input: "), sub(i("a"), i("i")), o("="), sub(i("x"), i("i")), o("·"), frac(row(o("∂"), i("y")), row(o("∂"), sub(i("x"), i("i"))))),
    row(word("integrated gradients: "), sub(i("a"), i("i")), o("="), sub(i("x"), i("i")), o("·"), m("msubsup", {}, o("∫"), n("0"), n("1")), frac(row(o("∂"), call("y", i("α"), i("x"))), row(o("∂"), sub(i("x"), i("i")))), i("d"), i("α")),
    row(word("ablation: change"), o("="), call("loss", word("without the part")), o("−"), word("loss")),
  ],
  tokenization: () => [
    row(word("byte pairs: join "), under("argmin", row(i("a"), o(","), i("b"))), call("rank", i("a"), o(","), i("b")), word(", until no pair has a rank")),
    row(word("unigram: "), under("argmax", word("cuts")), sum(i("t")), word("log "), call("p", sub(word("token"), i("t")))),
  ],
  health: () => [
    row(sum(i("j")), sub(i("w"), row(i("i"), i("j"))), o("="), n("1"), o(","), sub(i("w"), row(i("i"), i("j"))), o("="), n("0"), word(" for a future or padded token "), i("j")),
    row(word("scale"), o("="), frac(n("1"), root(sub(i("d"), i("k")))), o(","), row(o("∂"), word("loss"), o("/"), o("∂"), i("θ")), o("≠"), n("0"), word(" for every parameter "), i("θ")),
  ],
  learning: () => [row(word("loss"), o("="), o("−"), frac(n("1"), i("N")), sum(i("t")), word("log "), call("p", sub(i("y"), i("t"))))],
};

/** Return the formula as a block of MathML lines. */
export function formula(name) {
  const lines = FORMULAS[name]?.();
  if (!lines) return null;
  const block = document.createElement("div");
  for (const line of lines) block.append(m("math", { display: "block" }, line));
  return block;
}
