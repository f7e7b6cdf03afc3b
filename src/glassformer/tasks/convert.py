"""A model taken elsewhere: into other libraries' formats, and the proof that it says the same there."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from glassformer.checkpoint import load_model, save_model
from glassformer.checkpoint.gguf_out import Numbers, write_gguf
from glassformer.checkpoint.hf import family_called
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.checkpoint.pretrained import is_foreign, read_foreign
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from glassformer.text.pretrained import PretrainedTokenizer
from glassformer.text.tokenizer import BEGIN, END, PAD

Format = Literal["hf", "safetensors", "gguf"]
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
    if not is_foreign(path):
        # Its generation config speaks of our search, not of HF's.
        texts.pop("generation_config.json", None)
        ids: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}
        values = ids | ({"decoder_start_token_id": BEGIN} if model.kind == "encoder_decoder" else {})
        family = None
    else:
        foreign = read_foreign(path, allow_pickle=allow_pickle)
        values = {key: foreign.config[key] for key in foreign.config if key.endswith("_token_id")}
        family = family_called(foreign.config["model_type"])
        if foreign.tokenizer_json is not None:
            texts["tokenizer.json"] = foreign.tokenizer_json
            texts["tokenizer_config.json"] = json.dumps(dict(foreign.tokenizer_config), indent=2)
    if to == "hf":
        save_hf_folder(out, model, family=family, values=values, texts=texts)
    elif to == "safetensors":
        save_model(out, model, texts)
    else:
        if not isinstance(model, DecoderModel):
            raise ValueError(f"{path} is of kind {model.kind!r}: expected a decoder, for a GGUF file")
        write_gguf(out, model, numbers=numbers, **_vocabulary(texts))
    return model


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
    # HF reads GGUF only beside one more package.
    if to == "safetensors" or (to == "gguf" and importlib.util.find_spec("accelerate") is None):
        return compare(model, _ours(load_model(out)), "Glassformer")
    import transformers

    if to == "gguf":
        loaded = transformers.AutoModelForCausalLM.from_pretrained(out.parent, gguf_file=out.name)
        return compare(model, _theirs(loaded), "HF Transformers")
    name = json.loads((out / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    loaded, report = getattr(transformers, name).from_pretrained(out, output_loading_info=True)
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
    model.eval().float()

    def answer(source: Tensor, target: Tensor | None) -> Tensor:
        found = model(input_ids=source) if target is None else model(input_ids=source, decoder_input_ids=target)
        if "start_logits" in found:
            return torch.stack((found.start_logits, found.end_logits), -1)
        logits: Tensor = found[0]
        return logits

    return answer
