"""Check that a converted model computes the same outputs as the model it was converted from.

Each of the two is run by the library of its format. If HF Transformers or llama.cpp is needed and not installed,
Glassformer runs the model instead. The printed result names the libraries. In this module, "source" is the original
model and "result" is the converted one.
"""

import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.checkpoint import load_model
from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.external_formats import is_external, read_external
from glassformer.checkpoint.gguf_export import Numbers
from glassformer.checkpoint.hf import family_by_type
from glassformer.checkpoint.hf.folder import CONFIG, read_json_table
from glassformer.checkpoint.onnx_export import verify_onnx
from glassformer.decoding import GenerationConfig, generate, score_pairs
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel

Format = Literal["hf", "safetensors", "gguf", "ct2", "onnx"]
AnyModel = EncoderModel | DecoderModel | EncoderDecoderModel
Answer = Callable[[Tensor, Tensor | None], Tensor]
"""A function that runs one of the compared models: from token ids (B, T), or from the source and target ids of an
encoder-decoder, it returns the head's outputs, such as logits (B, T, V)."""
OURS, HF, LLAMA_CPP = "Glassformer", "HF Transformers", "llama.cpp"
N_TEXTS, MAX_LENGTH = 8, 24


class DisagreementError(ValueError):
    """The outputs of a converted model differ from those of its source by more than the tolerance."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far the outputs of two models may differ. A limit of None is not checked."""

    difference: float | None = None
    """Largest allowed difference of a logit, as a fraction of `Agreement.scale`."""
    divergence: float | None = None
    """Largest allowed mean Kullback-Leibler divergence between the next-token distributions, in nats."""
    same_tokens: float | None = None
    """Smallest allowed share of positions where both models predict the same token."""


EXACT = Tolerance(difference=1e-4)
"""The tolerance for weights that are written unchanged, where only float32 rounding differs."""
ROUNDED: dict[Numbers, Tolerance] = {
    "f32": Tolerance(divergence=1e-4, same_tokens=0.98),  # for llama.cpp, whose products are less exact
    "f16": Tolerance(divergence=1e-4, same_tokens=0.98),
    "q8_0": Tolerance(divergence=1e-2, same_tokens=0.9),
}
"""The tolerance for each number format of a GGUF file. Randomly initialized Llamas of width 32 diverged by up to 1e-5
in f16 and 2e-3 in q8_0, but by 3e-3 to 4e-2 with a wrong activation function. Trained models diverge less, because
their logits are further apart."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How much the outputs of a converted model and its source differ on random tokens, and how much they may."""

    reference: str
    """Name of the library that ran the original model."""
    tool: str
    """Name of the library that ran the converted model."""
    largest_difference: float
    """The largest absolute difference between two logits."""
    scale: float
    """The largest absolute logit of the original model, or 1 if that is smaller."""
    divergence: float | None
    """Mean Kullback-Leibler divergence in nats; None if the outputs are not token distributions."""
    same_tokens: float
    """Share of positions, or of texts if the head has one output per text, where both models have the same argmax."""
    tolerance: Tolerance

    def lines(self) -> Iterator[str]:
        """Yield the lines that `glassformer convert --verify` prints: the libraries, and each number with its limit."""
        limit = self.tolerance
        yield f"compared with {self.reference}; the result was loaded by {self.tool}"
        allowed = "" if limit.difference is None else f" (tolerance {limit.difference * self.scale:.2e})"
        yield f"largest difference of a logit: {self.largest_difference:.2e}{allowed}"
        if self.divergence is not None:
            allowed = "" if limit.divergence is None else f" (tolerance {limit.divergence:g})"
            yield f"mean divergence of the next token: {self.divergence:.2e} nats{allowed}"
        allowed = "" if limit.same_tokens is None else f" (tolerance: at least {limit.same_tokens:.0%})"
        yield f"equal most likely tokens: {self.same_tokens:.1%}{allowed}"

    def check(self, out: Path) -> None:
        """Raise DisagreementError, which names the path `out`, if a number is outside its tolerance or is NaN."""
        limit, problems = self.tolerance, []
        if limit.difference is not None and not self.largest_difference <= limit.difference * self.scale:
            problems.append(
                f"a logit differs by {self.largest_difference:.2e}, above {limit.difference * self.scale:.2e}"
            )
        if limit.divergence is not None and self.divergence is not None and not self.divergence <= limit.divergence:
            problems.append(f"the divergence is {self.divergence:.2e} nats, above {limit.divergence:g}")
        if limit.same_tokens is not None and not self.same_tokens >= limit.same_tokens:
            problems.append(f"{self.same_tokens:.1%} of tokens are equal, below {limit.same_tokens:.0%}")
        if problems:
            raise DisagreementError(
                f"{out} differs from its source: {'; '.join(problems)}. It was written all the same: do not "
                "use it, or write it with more exact numbers"
            )


def verify(
    source: Path, model: AnyModel, out: Path, to: Format, *, numbers: Numbers = "f16", allow_pickle: bool = False
) -> Agreement:
    """Run the model at `source` and its conversion at `out` on random tokens, and return how much they differ.

    `model` is the source as Glassformer loaded it, and `to` is the format of `out`. `numbers` is the number format of
    `out` if that is a GGUF file; the tolerance depends on it. A difference that is too large raises no error here: call
    `check` on the result for that.
    """
    source = find_model(source)
    reference, answer = _open_source(source, model, allow_pickle)
    padding = _padding(source, out)
    if to in ("onnx", "ct2"):
        return _through_ours(model, out, to, reference, answer, padding)
    tool, result = _open_result(out, to, model)
    if LLAMA_CPP in (reference, tool):
        is_quantized = source.is_file() or numbers == "q8_0"
        tolerance = ROUNDED["q8_0" if is_quantized else numbers]
    else:
        tolerance = EXACT if to != "gguf" or numbers == "f32" else ROUNDED[numbers]
    return compare(model, answer, result, reference=reference, tool=tool, tolerance=tolerance, padding=padding)


def is_installed(package: str) -> bool:
    """Return whether Python finds a package of this name. The package is not imported."""
    return importlib.util.find_spec(package) is not None


def compare(
    model: AnyModel,
    source: Answer,
    result: Answer,
    *,
    reference: str,
    tool: str,
    tolerance: Tolerance,
    padding: int | None = None,
    seed: int = 0,
) -> Agreement:
    """Call `source` and `result` with the same random tokens and return how much their outputs differ.

    `source` runs the original model with the library named `reference`, and `result` runs the converted model with the
    library named `tool`. `model` is not run: its config gives the sizes of the vocabularies and the longest input.
    The random tokens never have the id `padding`, because HF's RoBERTa skips padding when it numbers the positions.
    """
    config, random = model.config, torch.Generator().manual_seed(seed)
    shape = N_TEXTS, min(config.max_len or MAX_LENGTH, MAX_LENGTH)

    def texts(vocab_size: int) -> Tensor:
        tokens = torch.randint(vocab_size, shape, generator=random)
        return tokens if padding is None else torch.where(tokens == padding, (tokens + 1) % vocab_size, tokens)

    tokens = texts(config.source_vocab)
    target = texts(config.vocab_size) if isinstance(model, EncoderDecoderModel) else None
    with torch.inference_mode():
        one, two = source(tokens, target).float(), result(tokens, target).float()
    if one.shape != two.shape:
        raise ValueError(
            f"{tool} answers with {tuple(two.shape)}, {reference} with {tuple(one.shape)}: expected one shape"
        )
    divergence = None
    if config.head == "language_model":
        left, right = one.log_softmax(-1), two.log_softmax(-1)
        divergence = (left.exp() * (left - right)).sum(-1).mean().item()
    return Agreement(
        reference=reference,
        tool=tool,
        largest_difference=(one - two).abs().max().item(),
        scale=max(1.0, one.abs().max().item()),
        divergence=divergence,
        same_tokens=(one.argmax(-1) == two.argmax(-1)).float().mean().item(),
        tolerance=tolerance,
    )


def _open_source(source: Path, model: AnyModel, allow_pickle: bool) -> tuple[str, Answer]:
    """Return the name of the library that runs the original model for `verify`, and the function that runs it.

    The library is that of the model's format if it is installed, otherwise Glassformer.
    """
    external = read_external(source, allow_pickle=allow_pickle) if source.is_dir() and is_external(source) else None
    # HF reads adapters only if peft is installed.
    if external is not None and external.base is None and is_installed("transformers"):
        family = family_by_type(external.config.get("model_type"))
        return HF, _hf(source, family.write_config(model.config)["architectures"][0])
    if source.is_file() and source.suffix == ".gguf" and is_installed("llama_cpp"):
        return LLAMA_CPP, _llama_cpp(source)
    return OURS, _ours(model)


def _open_result(out: Path, to: Format, model: AnyModel) -> tuple[str, Answer]:
    """Return the name of the library that runs the converted model for `verify`, and the function that runs it.

    The library is that of the format `to` if it is installed, otherwise Glassformer. `model` is the model as
    Glassformer loaded it. If it has no head, an extra head that HF's class adds is not run.
    """
    if to == "gguf" and is_installed("llama_cpp"):
        return LLAMA_CPP, _llama_cpp(out)
    if to == "hf" and is_installed("transformers"):
        name = str(read_json_table(out / CONFIG)["architectures"][0])
        complete = _hf(out, name, is_complete=True)
        has_extra_head = model.config.head == "none" and name.endswith(("ForPreTraining", "ForNextSentencePrediction"))
        return HF, _hf(out, f"{name.partition('For')[0]}Model") if has_extra_head else complete
    # HF reads GGUF only if accelerate is installed.
    if to == "gguf" and is_installed("transformers") and is_installed("accelerate"):
        import transformers

        config = transformers.AutoConfig.from_pretrained(out.parent, gguf_file=out.name)
        if hasattr(config, "head_dim"):  # HF does not read it from the file, and Qwen3 has another default
            config.head_dim = model.config.head_size
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            out.parent, gguf_file=out.name, config=config, dtype=torch.float32
        )
        return HF, _theirs(loaded)
    return OURS, _ours(load_model(out))


def _padding(*paths: Path) -> int | None:
    """Return the `pad_token_id` of the first of these folders whose `config.json` has one; None if none does."""
    for path in paths:
        found = read_json_table(path / CONFIG).get("pad_token_id") if (path / CONFIG).is_file() else None
        if isinstance(found, int):
            return found
    return None


def _through_ours(
    model: AnyModel, out: Path, to: Format, reference: str, source: Answer, padding: int | None
) -> Agreement:
    """Compare a model converted to ONNX or CTranslate2 with the original model, for `verify`.

    These formats are compared step by step while they decode, which `compare` cannot do. So the result combines
    two comparisons: of the original model (`source`) with Glassformer's `model`, and of `model` with the converted
    model at `out`. Their largest differences are added, and the lower share of equal tokens is taken.
    """
    first = compare(model, source, _ours(model), reference=reference, tool=OURS, tolerance=EXACT, padding=padding)
    if to == "onnx":
        tool, (difference, same) = "onnxruntime", verify_onnx(out, model)
    else:
        assert isinstance(model, EncoderDecoderModel)
        tool, (difference, same) = "CTranslate2", _compare_ct2(model, out)
    total, same = first.largest_difference + difference, min(first.same_tokens, same)
    return replace(first, tool=tool, largest_difference=total, divergence=None, same_tokens=same)


def _hf(folder: Path, name: str, *, is_complete: bool = False) -> Answer:
    """Load a model folder with the HF Transformers class called `name`, and return a function that runs the model.

    If `is_complete` is True, raise ValueError unless the folder holds exactly the tensors that HF expects. Those of the
    pooler may be missing.
    """
    import transformers

    loaded, report = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    missing = [
        key for key in report["missing_keys"] if "pooler" not in key
    ]  # the pooler does not affect the compared outputs
    problems = {"missing": missing, "unexpected": report["unexpected_keys"], "mismatched": report["mismatched_keys"]}
    problems = {key: names for key, names in problems.items() if names}
    if is_complete and problems:
        raise ValueError(f"{folder} does not hold what HF expects: {problems}")
    return _theirs(loaded)


def _ours(model: AnyModel) -> Answer:
    def answer(source: Tensor, target: Tensor | None) -> Tensor:
        found: Tensor = model(source) if target is None else model(source, target)
        return found

    return answer


def _theirs(model: Any) -> Answer:
    model.eval()

    def answer(source: Tensor, target: Tensor | None) -> Tensor:
        # Without a mask, some classes treat a token with the id of their padding as padding.
        given = {"input_ids": source, "attention_mask": torch.ones_like(source)}
        found = model(**given) if target is None else model(**given, decoder_input_ids=target)
        if "start_logits" in found:
            return torch.stack((found.start_logits, found.end_logits), -1)
        logits: Tensor = found[0]
        return logits

    return answer


def _llama_cpp(path: Path) -> Answer:
    """Load a GGUF file with llama.cpp, with a float32 key-value cache, and return a function that runs it."""
    import llama_cpp

    exact = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    loaded = llama_cpp.Llama(str(path), n_ctx=MAX_LENGTH, logits_all=True, verbose=False, **exact)

    def answer(source: Tensor, target: Tensor | None) -> Tensor:
        rows = []
        for row in source.tolist():
            loaded.reset()
            loaded.eval(row)
            rows.append(torch.tensor(loaded.scores[: len(row)]))
        return torch.stack(rows)

    return answer


def _compare_ct2(model: EncoderDecoderModel, out: Path, *, n_steps: int = 16) -> tuple[float, float]:
    """Compare a CTranslate2 folder with the model it was converted from, on random tokens.

    Returns the largest difference between the log-probabilities of the same target tokens, and the share of equal
    tokens in greedy translations of at most `n_steps` tokens.
    """
    import ctranslate2

    translator = ctranslate2.Translator(str(out), device="cpu", compute_type="float32")
    settings = json.loads((out / "config.json").read_text(encoding="utf-8"))
    names = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*vocabulary.json")}
    shared = names.get("shared_vocabulary", [])
    source_names, target_names = names.get("source_vocabulary", shared), names.get("target_vocabulary", shared)
    begin, end = (target_names.index(settings[key]) for key in ("decoder_start_token", "eos_token"))
    random = torch.Generator().manual_seed(0)
    source = torch.randint(4, model.config.source_vocab, (3, 8), generator=random).tolist()
    target = torch.randint(4, model.config.vocab_size, (3, 6), generator=random).tolist()
    read = [[*row, end] if settings["add_source_eos"] else row for row in source]
    spelled = [[source_names[token] for token in row] for row in source]
    scored = translator.score_batch(spelled, [[target_names[token] for token in row] for row in target])
    own = score_pairs(model, read, target, begin=begin, end=end)
    differences = [
        abs(a - b) for one, two in zip(scored, own, strict=True) for a, b in zip(one.log_probs, two, strict=True)
    ]
    greedy = translator.translate_batch(spelled, beam_size=1, max_decoding_length=n_steps)
    texts = generate(model, read, GenerationConfig(max_new_tokens=n_steps), begin=begin, end=end)
    pairs = [
        (target_names[token], name)
        for (text,), found in zip(texts, greedy, strict=True)
        for token, name in zip(text.tokens, found.hypotheses[0], strict=False)
    ]
    same = sum(a == b for a, b in pairs) / max(len(pairs), 1)
    return torch.tensor(differences).max().item(), same  # torch's max keeps NaN, Python's does not
