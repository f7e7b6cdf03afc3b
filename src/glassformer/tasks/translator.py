"""A trained translator: text in, text out."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.checkpoint import load_model, save_model
from glassformer.data.pairs import Pair
from glassformer.decoding import GenerationConfig, generate
from glassformer.metrics import TranslationScores, score_translations
from glassformer.models import EncoderDecoderModel
from glassformer.nn import capture_attention
from glassformer.text import Tokenizer
from glassformer.text.tokenizer import BEGIN, END

GENERATION = "generation_config.json"


SEARCH = GenerationConfig(num_beams=4, max_source_ratio=2.0)
"""How a translation is searched for, unless the folder says otherwise."""


class Explained(NamedTuple):
    """A translation and what the model looked at while it wrote it."""

    translation: str
    source_pieces: list[str]
    target_pieces: list[str]
    weights: Tensor
    """(layers, heads, target pieces, source pieces): the cross-attention."""


class Translator:
    """A trained model with its tokenizers: text in, text out."""

    def __init__(
        self,
        model: EncoderDecoderModel,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        generation: GenerationConfig = SEARCH,
    ):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.generation = generation

    @classmethod
    def from_folder(cls, folder: Path | str) -> "Translator":
        """The translator saved in a model folder."""
        folder = Path(folder)
        model = load_model(folder)
        if not isinstance(model, EncoderDecoderModel):
            raise ValueError(f"{folder} holds a model of kind {model.kind!r}: expected 'encoder_decoder'")
        joint = folder / "tokenizer.json"
        sides = [joint, joint] if joint.is_file() else [folder / f"{s}_tokenizer.json" for s in ("source", "target")]
        settings = json.loads((folder / GENERATION).read_text(encoding="utf-8"))
        return cls(model, Tokenizer.load(sides[0]), Tokenizer.load(sides[1]), GenerationConfig.from_dict(settings))

    def save(self, folder: Path, card: str) -> None:
        """Write the model folder."""
        texts = {"README.md": card, GENERATION: json.dumps(self.generation.to_dict(), indent=2)}
        if self.source_tokenizer is self.target_tokenizer:
            texts["tokenizer.json"] = self.source_tokenizer.to_json()
        else:
            texts["source_tokenizer.json"] = self.source_tokenizer.to_json()
            texts["target_tokenizer.json"] = self.target_tokenizer.to_json()
        save_model(folder, self.model, texts)

    def translate(self, texts: Sequence[str], *, beam: int | None = None, max_batch_tokens: int = 4096) -> list[str]:
        """One translation for each text, in the same order; a blank text stays blank.

        Sources longer than the model's limit are cut to it. `beam` is how many sentences are kept at each step; 1 is
        greedy.
        """
        answers = [""] * len(texts)
        told = [index for index, text in enumerate(texts) if text.strip()]
        sources = [self._read(text) for text in self.source_tokenizer.encode_batch([texts[index] for index in told])]
        found = generate(
            self.model, sources, self._search(beam), begin=BEGIN, end=END, max_batch_tokens=max_batch_tokens
        )
        for index, written in zip(told, found, strict=True):
            answers[index] = self.target_tokenizer.decode(written[0].tokens)
        return answers

    def run(self, texts: Sequence[str], *, beam: int | None = None) -> list[str]:
        """`translate`, by the name that every model here has."""
        return self.translate(texts, beam=beam)

    def _read(self, ids: list[int]) -> list[int]:
        """What the model reads: as much as it can, and END."""
        return [*ids[: (self.model.config.max_len or 512) - 1], END]

    def _search(self, beam: int | None) -> GenerationConfig:
        return self.generation if beam is None else replace(self.generation, num_beams=beam)

    def explain(self, text: str) -> Explained:
        """Translate one text, and look again at where the decoder looked as it wrote each piece.

        Both lists end with the end of the text, which the model reads and writes too.
        """
        source = self._read(self.source_tokenizer.encode(text))
        written = generate(self.model, [source], self.generation, begin=BEGIN, end=END)[0][0].tokens
        target = written[: (self.model.config.max_len or len(written) + 1) - 1]  # with BEGIN it must fit
        device = next(self.model.parameters()).device
        with torch.inference_mode(), capture_attention(self.model, kinds=["cross_attn"]) as captured:
            self.model(torch.tensor([source], device=device), torch.tensor([[BEGIN, *target]], device=device))
        weights = torch.stack([captured[name][0] for name in captured])
        return Explained(
            self.target_tokenizer.decode(target),
            [*self.source_tokenizer.tokens(source[:-1]), "(end)"],
            [*self.target_tokenizer.tokens(target), "(end)"],
            weights.float().cpu(),
        )

    def score(self, pairs: Sequence[Pair], *, beam: int | None = None) -> TranslationScores:
        """BLEU and chrF of the translations of these sources against their targets."""
        return score_translations(
            self.translate([pair.source for pair in pairs], beam=beam), [pair.target for pair in pairs]
        )
