"""A model taken elsewhere: into other libraries' formats, and the proof that it says the same there."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tokenizers
import torch
from torch import Tensor

from glassformer.checkpoint import load_model, save_model
from glassformer.checkpoint.ct2_out import Vocabulary, export_ct2
from glassformer.checkpoint.gguf_out import Numbers, write_gguf
from glassformer.checkpoint.hf import family_called
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.checkpoint.onnx_out import export_onnx, verify_onnx
from glassformer.checkpoint.pretrained import ORIGIN, is_foreign, read_foreign, read_origin
from glassformer.decoding import GenerationConfig, generate, score_pairs
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from glassformer.text.pretrained import PretrainedTokenizer
from glassformer.text.tokenizer import BEGIN, END, PAD

Format = Literal["hf", "safetensors", "gguf", "ct2", "onnx"]
AnyModel = EncoderModel | DecoderModel | EncoderDecoderModel
Answer = Callable[[Tensor, Tensor | None], Tensor]
"""Logits for tokens, or for a source and a target."""

TEXTS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "labels.json",
    "source_tokenizer.json",
    "target_tokenizer.json",
)
"""Files about text, which go along as they are."""


class Agreement(NamedTuple):
    """How alike two models are."""

    tool: str
    """What loaded the other one."""
    largest_difference: float
    """Of any logit, over random texts."""
    same_tokens: float
    """Share of greedy tokens that are equal, each model going on by itself."""


def convert(path: Path, out: Path, to: Format, *, numbers: Numbers = "f16", allow_pickle: bool = False) -> AnyModel:
    """Write the model at `path` to `out` in another format; the model itself, to compare with."""
    model = load_model(path, allow_pickle=allow_pickle)
    texts = {name: (path / name).read_text(encoding="utf-8") for name in TEXTS if (path / name).is_file()}
    foreign = read_foreign(path, allow_pickle=allow_pickle) if is_foreign(path) else None
    origin = read_origin(path) if foreign is None else foreign.config
    if origin is not None:
        values = {key: origin[key] for key in origin if key.endswith("_token_id")}
        family = family_called(origin.get("model_type"))
    else:
        values = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}
        values |= {"decoder_start_token_id": BEGIN} if model.kind == "encoder_decoder" else {}
        family = None
    if foreign is not None and foreign.tokenizer_json is not None:
        texts["tokenizer.json"] = foreign.tokenizer_json
        texts["tokenizer_config.json"] = json.dumps(dict(foreign.tokenizer_config), indent=2)
    if (foreign is None) != (to == "safetensors"):
        texts.pop("generation_config.json", None)  # it speaks of our search to them, or of theirs to us
    if to == "safetensors" and origin is not None:
        texts[ORIGIN] = json.dumps({"model_type": origin["model_type"], **values}, indent=2)
    if to == "hf":
        save_hf_folder(out, model, family=family, values=values, texts=texts)
    elif to == "safetensors":
        save_model(out, model, texts)
    elif to == "onnx":
        export_onnx(model, out, texts)
    elif to == "ct2":
        if not isinstance(model, EncoderDecoderModel):
            raise ValueError(f"{path} is of kind {model.kind!r}: expected an encoder-decoder, for CTranslate2")
        export_ct2(model, out, _both_sides(model, texts, values, reads_end=origin is None))
    else:
        if not isinstance(model, DecoderModel):
            raise ValueError(f"{path} is of kind {model.kind!r}: expected a decoder, for a GGUF file")
        write_gguf(out, model, numbers=numbers, **_vocabulary(texts))
    return model


def _both_sides(model: EncoderDecoderModel, texts: dict[str, str], ids: dict[str, Any], reads_end: bool) -> Vocabulary:
    """The tokens CTranslate2 is told of. Foreign tokenizers put the end behind a source themselves."""
    sides = []
    for name, size in (("source", model.config.source_vocab), ("target", model.config.vocab_size)):
        text = texts.get(f"{name}_tokenizer.json", texts.get("tokenizer.json"))
        if text is None:
            raise ValueError("the model has no tokenizer.json: expected one, for CTranslate2 works on tokens' names")
        known = {index: token for token, index in tokenizers.Tokenizer.from_str(text).get_vocab().items()}
        sides.append([known.get(index, f"<unused{index}>") for index in range(size)])
    source, target = sides
    unknown = next((token for token in ("<unk>", "[UNK]", "<|endoftext|>") if token in target), target[0])
    begin, end = ids.get("decoder_start_token_id"), ids.get("eos_token_id")
    if not isinstance(begin, int) or not isinstance(end, int):
        raise ValueError("config.json lacks decoder_start_token_id or eos_token_id: expected both")
    return Vocabulary(
        source=source, target=target, begin=target[begin], end=target[end], unknown=unknown, reads_end=reads_end
    )


def _vocabulary(texts: dict[str, str]) -> dict[str, Any]:
    """What a GGUF file is told of the tokenizer, where there is one."""
    if "tokenizer.json" not in texts:
        return {}
    config = json.loads(texts.get("tokenizer_config.json", "{}"))
    tokenizer = PretrainedTokenizer.from_json(texts["tokenizer.json"], config)
    roles = {"bos": tokenizer.begin, "eos": tokenizer.end, "pad": tokenizer.pad}
    return {"tokenizer_json": texts["tokenizer.json"], "roles": roles, "chat_template": tokenizer.chat_template}


def verify(model: AnyModel, out: Path, to: Format) -> Agreement:
    """Load what was written with another tool, and compare: HF Transformers, or ours for what that cannot load here."""
    if to == "onnx":
        return Agreement("onnxruntime", *verify_onnx(out, model))
    if to == "ct2":
        assert isinstance(model, EncoderDecoderModel)
        return _compare_ct2(model, out)
    # HF reads GGUF only beside one more package.
    if to == "safetensors" or (to == "gguf" and importlib.util.find_spec("accelerate") is None):
        return compare(model, _ours(load_model(out)), "Glassformer")
    import transformers

    if to == "gguf":
        loaded = transformers.AutoModelForCausalLM.from_pretrained(out.parent, gguf_file=out.name, dtype=torch.float32)
        return compare(model, _theirs(loaded), "HF Transformers")
    name = json.loads((out / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    loaded, report = getattr(transformers, name).from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    problems = {key: report[key] for key in ("missing_keys", "unexpected_keys") if report.get(key)}
    if problems:
        raise ValueError(f"{out} does not hold what HF expects: {problems}")
    return compare(model, _theirs(loaded), "HF Transformers")


def compare(model: AnyModel, other: Answer, tool: str, *, n_steps: int = 16, seed: int = 0) -> Agreement:
    """Hold two models against each other, on random texts."""
    random = torch.Generator().manual_seed(seed)
    room = min(model.config.max_len or 64, 64)
    length = max(2, min(12, room - n_steps))
    shape = (3, length)
    source = torch.randint(3, model.config.source_vocab, shape, generator=random)
    has_target = isinstance(model, EncoderDecoderModel)
    given = torch.randint(3, model.config.vocab_size, shape, generator=random) if has_target else None
    own = _ours(model)
    with torch.inference_mode():
        difference = (own(source, given) - other(source, given)).abs().max().item()
        if isinstance(model, EncoderModel):
            same = own(source, given).argmax(-1) == other(source, given).argmax(-1)
            return Agreement(tool, difference, same.float().mean().item())
        texts = [_greedy(answer, source, given, min(n_steps, room - length)) for answer in (own, other)]
    return Agreement(tool, difference, (texts[0] == texts[1]).float().mean().item())


def _greedy(answer: Answer, source: Tensor, given: Tensor | None, n_steps: int) -> Tensor:
    """The tokens written after the source, or after the first target token, with no cache to hide a mistake."""
    written = source if given is None else given[:, :1]
    start = written.shape[1]
    for _ in range(max(n_steps, 1)):
        logits = answer(written, None) if given is None else answer(source, written)
        written = torch.cat((written, logits[:, -1:].argmax(-1)), 1)
    return written[:, start:]


def _ours(model: AnyModel) -> Answer:
    def answer(source: Tensor, target: Tensor | None) -> Tensor:
        found: Tensor = model(source) if target is None else model(source, target)
        return found

    return answer


def _theirs(model: Any) -> Answer:
    model.eval()

    def answer(source: Tensor, target: Tensor | None) -> Tensor:
        found = model(input_ids=source) if target is None else model(input_ids=source, decoder_input_ids=target)
        if "start_logits" in found:
            return torch.stack((found.start_logits, found.end_logits), -1)
        logits: Tensor = found[0]
        return logits

    return answer


def _compare_ct2(model: EncoderDecoderModel, out: Path, *, n_steps: int = 16) -> Agreement:
    """By log-probabilities of given targets, which CTranslate2 tells, and by what both write."""
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
    return Agreement("CTranslate2", max(differences), same)
