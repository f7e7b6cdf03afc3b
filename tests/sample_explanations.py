"""Small explanations with random but consistent numbers: the attention weights follow from q, k, bias and mask."""

import base64

import numpy as np

WORDS = ["the", "old", "cat", "sat", "on", "the", "warm", "mat", "and", "saw", "a", "small", "bird"]
WRITTEN = ["die", "alte", "Katze", "sass", "auf", "der", "warmen", "Matte", "und", "sah", "einen", "kleinen", "Vogel"]


def stored(values, dtype="int16"):
    if dtype == "int16":
        scale = max(float(np.abs(values).max(initial=0)), 1e-30) / 32767
        data = np.round(np.asarray(values) / scale).astype("<i2")
        text = base64.b64encode(data.tobytes()).decode()
        return {"shape": list(data.shape), "data": text, "dtype": "int16", "scale": scale}
    values = np.asarray(values, dtype="<" + np.dtype(dtype).str[1:])
    return {"shape": list(values.shape), "data": base64.b64encode(values.tobytes()).decode(), "dtype": dtype}


def loaded(array):
    values = np.frombuffer(base64.b64decode(array["data"]), array["dtype"]).reshape(array["shape"])
    return values * array.get("scale", 1)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def pieces(words, length):
    return [words[n % len(words)] for n in range(length - 1)]


def tokens(rng, words, length, *, first=None, last="</s>"):
    texts = ([first] if first else []) + pieces(words, length) + ([last] if last else [])
    texts = texts[:length]
    special = [text.startswith("<") for text in texts]
    return {"ids": rng.integers(4, 90, len(texts)).tolist(), "pieces": texts, "special": special, "offsets": None}


def attention(rng, name, kind, queries, keys, sizes, *, heads=4, kv_heads=2, d=8, most_exact=300, most_vectors=64):
    n, m = sizes[queries], sizes[keys]
    q, k, v = (rng.normal(size=(h, t, d)).astype(np.float32) for h, t in ((heads, n), (kv_heads, m), (kv_heads, m)))
    scale = d**-0.5
    distance = np.abs(np.arange(n)[:, None] - np.arange(m)[None, :])
    bias = (-(2.0 ** -np.arange(1, heads + 1))[:, None, None] * distance).astype(np.float32)
    mask = np.tri(n, m) if kind == "causal" else np.ones((n, m))
    scores = np.einsum("hqd,hkd->hqk", q, np.repeat(k, heads // kv_heads, 0)) * scale + bias
    weights = softmax(np.where(mask, scores, -np.inf))
    factor = -(-max(n, m) // 256) if max(n, m) > most_exact else 1
    keep = max(n, m) <= most_vectors
    found = {
        "name": name, "kind": kind, "queries": queries, "keys": keys, "weights": stored(pool(weights, factor)),
        "head_kinds": [{"kind": kinds, "score": round(float(rng.random()), 4)} for kinds in HEAD_KINDS[:heads]],
        "q": stored(q, "float32") if keep else None, "k": stored(k, "float32") if keep else None,
        "v": stored(v, "float32") if keep else None, "scale": scale, "bias": stored(bias, "float32") if keep else None,
        "mask": stored(mask, "float16") if keep else None, "softcap": None, "groups": heads // kv_heads,
    }  # fmt: skip
    if factor > 1:
        found["weights"]["pooled"] = factor
    return found


HEAD_KINDS = ["previous token", "diffuse", "same word", "mixed"]


def pool(weights, factor):
    if factor == 1:
        return weights
    h, n, m = weights.shape
    rows, columns = -(-n // factor), -(-m // factor)
    padded = np.zeros((h, rows * factor, columns * factor))
    padded[:, :n, :m] = weights
    return padded.reshape(h, rows, factor, columns, factor).max((2, 4))


def layer(rng, stack, number, side, sizes, *, cross):
    n, name = sizes[side], f"{stack}.layers.{number}"
    kind = "self" if stack == "encoder" else "causal"
    maps = [attention(rng, f"{name}.self_attn", kind, side, side, sizes)]
    if cross:
        maps.append(attention(rng, f"{name}.cross_attn", "cross", "target", "source", sizes))

    def numbers(low, high):
        return [round(float(x), 4) for x in rng.uniform(low, high, n)]

    return {
        "name": name,
        "residual": {
            "in": numbers(4, 5),
            "mid": numbers(5, 7),
            "cross": numbers(5, 7) if cross else None,
            "out": numbers(7, 9),
        },
        "added": {
            "self_attention": numbers(0.1, 0.5),
            "cross_attention": numbers(0.1, 0.5) if cross else None,
            "feedforward": numbers(0.2, 0.9),
        },
        "attention": maps,
    }


def candidates(rng, words, n=50, vocab=90):
    logits = np.sort(rng.normal(size=vocab) * 2)[::-1]
    log_probabilities = np.log(softmax(logits))
    texts = [words[i] if i < len(words) else f"token{i}" for i in range(n)]
    found = [
        {"id": i, "token": texts[i], "logit": round(float(logits[i]), 5),
         "log_probability": round(float(log_probabilities[i]), 5)}
        for i in range(n)
    ]  # fmt: skip
    sums = [round(float(np.log(np.exp(logits[n:] / t).sum())), 6) for t in np.arange(1, 21) / 10]
    return found, round(float(np.exp(log_probabilities[n:]).sum()), 6), sums, logits.tolist()


def beam(rng, target, width=3):
    steps, parents, number = [], [None] * width, 0
    for t, text in enumerate(target[1:]):
        rows = []
        for slot in range(width + 2):
            total = round(-0.3 * (t + 1) - 0.4 * slot - float(rng.random()) * 0.1, 5)
            rows.append(
                {
                    "id": number, "parent": parents[0] if slot < 3 else parents[-1], "sum": total,
                    "token": text if slot == 0 else f"{text}{slot}", "score": round(total / (t + 1), 5),
                    "finished": text == "</s>", "kept": slot < width,
                    "reason": None if slot < width else f"outside the {width} best of this step",
                }
            )  # fmt: skip
            number += 1
        parents = [row["id"] for row in rows if row["kept"]]
        steps.append({"hypotheses": rows})
    return {"width": width, "length_penalty": 1.0, "steps": steps, "final": parents}


def explanation(kind="encoder-decoder", *, n_source=9, n_target=8, layers=2, seed=0, words=None):
    rng = np.random.default_rng(seed)
    source = tokens(rng, words or WORDS, n_source)
    target = None
    if kind != "encoder":
        is_decoder = kind == "decoder"
        target = tokens(rng, words or (WORDS if is_decoder else WRITTEN), n_target, first=None if is_decoder else "<s>")
        target["prompt"] = 4 if is_decoder else 1
        if is_decoder:
            source = {name: values[:4] for name, values in target.items() if name in ("ids", "pieces", "special")}
            source["offsets"] = None
    sizes = {"source": len(source["pieces"]), "target": len(target["pieces"]) if target else 0}
    has_encoder, has_decoder = kind != "decoder", kind != "encoder"
    stacks = []
    for stack, side in ((["encoder", "source"],) if has_encoder else ()) + (
        (["decoder", "target"],) if has_decoder else ()
    ):
        cross = stack == "decoder" and has_encoder
        norms = [round(float(x), 4) for x in rng.uniform(3, 4, sizes[side])]
        made = [layer(rng, stack, n, side, sizes, cross=cross) for n in range(layers)]
        stacks.append({"name": stack, "tokens": side, "embedding": {"norms": norms}, "layers": made})
    cross_map = has_encoder and has_decoder
    writing = target or source
    written = pieces(WRITTEN, len(writing["pieces"]))
    chosen = [*writing["pieces"][1:], "</s>"] if has_decoder else None
    following = None
    if has_decoder:
        following = []
        for position, token in enumerate(chosen):
            best, rest, sums, logits = candidates(rng, [token, *WORDS])
            taken = {key: best[0][key] for key in ("id", "token", "log_probability")}
            following.append(
                {
                    "position": position,
                    "chosen": taken,
                    "candidates": best,
                    "rest": rest,
                    "rest_log_sums": sums,
                    "all_logits": logits,
                }
            )
    names = [m["name"] for s in stacks for one in s["layers"] for m in one["attention"]]
    text = " ".join(t for t, special in zip(writing["pieces"], writing["special"], strict=True) if not special)
    scores = {m: [round(float(x), 4) for x in rng.uniform(-1, 1, sizes["source"])] for m in ("a", "b", "c")}
    lens = []
    for s in stacks:
        key = "probability" if s["name"] == "decoder" else "similarity"
        for n in range(layers + 1):
            rows = [
                [{"token": WORDS[(i + n + j) % 13], key: round(0.5 / (j + 1), 4)} for j in range(5)]
                for i in range(sizes[s["tokens"]])
            ]
            lens.append({"stack": s["name"], "layer": n, "tokens": rows})
    angle = np.arange(16)[:, None] / 10000 ** (np.arange(32)[None, :] // 2 * 2 / 32)
    picture = np.where(np.arange(32) % 2, np.cos(angle), np.sin(angle))
    checkpoints = [
        {"update": u, "attention": stored(softmax(rng.normal(size=(sizes["source"],) * 2) * u / 100))}
        for u in (100, 200, 400)
    ]
    return {
        "version": 1,
        "model": {
            "name": f"sample {kind}", "family": "transformer", "kind": kind, "parameters": 123456,
            "config": {"d_model": 32, "n_heads": 4, "activation": "relu", "norm": "layer", "gated": False},
            "layers": {"encoder": layers * has_encoder, "decoder": layers * has_decoder}, "heads": 4, "kv_heads": 2,
            "width": 32, "ffn_width": 64, "vocabulary": 90, "norm_order": "pre", "positions": "sinusoidal",
        },
        "options": {"text": " ".join(pieces(WORDS, n_source)), "target": None, "temperature": 1.0, "top_k": 0,
                    "top_p": 1.0, "beam": 3 if cross_map else 1, "ablate": [], "max_tokens": 32},
        "text": {"source": source, "target": target},
        "output": {
            "text": text if has_decoder else "animal", "kind": "text" if has_decoder else "label",
            "labels": None if has_decoder else [{"label": "animal", "probability": 0.75},
                                                {"label": "tool", "probability": 0.25}],
            "loss": 0.4321,
        },
        "baseline": None,
        "stacks": stacks,
        "rollout": {
            "encoder": stored(softmax(rng.normal(size=(sizes["source"],) * 2))) if has_encoder else None,
            "decoder": stored(softmax(rng.normal(size=(sizes["target"],) * 2))) if kind == "decoder" else None,
            "cross": stored(softmax(rng.normal(size=(sizes["target"], sizes["source"])))) if cross_map else None,
        },
        "positions": {"kind": "sinusoidal", "picture": stored(picture, "float32"), "axes": ["position", "dimension"],
                      "explanation": "Each dimension is a sine or cosine of the position."},
        "lens": lens,
        "next": following,
        "beam": beam(rng, target["pieces"]) if cross_map else None,
        "attribution": {
            "target_position": 1, "target_token": chosen[1] if chosen else "animal",
            "methods": [
                {"name": name, "scores": {"source": values, "target": None}, "note": "A made-up number."}
                for name, values in zip(("gradient x input", "integrated gradients", "attention rollout"),
                                        scores.values(), strict=True)
            ],
        },
        "ablation": [
            {"name": f"{name}.head.{head}", "output": text if head else " ".join(written), "loss": 0.5 + head / 10,
             "change": round(0.0679 + head / 10, 4)}
            for name in names for head in range(4)
        ],
        "learning": {
            "curve": [{"update": u, "loss": round(4 * 0.8**n, 4), "validation": {"valid loss": round(4.2 * 0.82**n, 4)}}
                      for n, u in enumerate(range(50, 450, 50))],
            "samples": [{"update": u, "text": f"sample at {u}"} for u in (100, 200, 400)],
            "checkpoints": checkpoints,
        },
        "tokenization": {
            "kind": "byte-level BPE", "pieces": source["pieces"],
            "merges": [{"left": "t", "right": "h", "result": "th", "rank": 3},
                       {"left": "th", "right": "e", "result": "the", "rank": 8}],
        },
        "health": [
            {"name": "attention rows sum to 1", "passed": True, "value": 1e-07, "limit": 1e-05,
             "explanation": "The largest difference from 1 of any row."},
            {"name": "gradients reach every parameter", "passed": False, "value": "2 of 40 have none", "limit": "0",
             "explanation": "A parameter without a gradient does not learn."},
        ],
    }  # fmt: skip
