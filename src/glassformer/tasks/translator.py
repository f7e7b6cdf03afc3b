"""A trained translator: text in, text out."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.checkpoint import load_model, save_model
from glassformer.data.pairs import Pair
from glassformer.decoding.beam import translate_by_beam
from glassformer.decoding.greedy import translate_greedily
from glassformer.metrics import TranslationScores, score_translations
from glassformer.models import EncoderDecoderModel
from glassformer.nn import capture_attention
from glassformer.text import Tokenizer
from glassformer.text.tokenizer import BEGIN, END, PAD

GENERATION = "generation_config.json"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How a translation is searched for."""

    beam: int = 4
    """Sentences kept at each step; 1 is greedy."""
    length_penalty: float = 1.0
    max_ratio: float = 2.0
    """Longest translation: this many times the source's tokens, and 10 more."""


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
        generation: Generation | None = None,
    ):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.generation = generation or Generation()

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
        return cls(model, Tokenizer.load(sides[0]), Tokenizer.load(sides[1]), Generation(**settings))

    def save(self, folder: Path, card: str) -> None:
        """Write the model folder."""
        texts = {"README.md": card, GENERATION: json.dumps(asdict(self.generation), indent=2)}
        if self.source_tokenizer is self.target_tokenizer:
            texts["tokenizer.json"] = self.source_tokenizer.to_json()
        else:
            texts["source_tokenizer.json"] = self.source_tokenizer.to_json()
            texts["target_tokenizer.json"] = self.target_tokenizer.to_json()
        save_model(folder, self.model, texts)

    def translate(self, texts: Sequence[str], *, beam: int | None = None, max_tokens: int = 4096) -> list[str]:
        """One translation for each text, in the same order; a blank text stays blank.

        Sources longer than the model's limit are cut to it.
        """
        sources = [self._clip(ids) for ids in self.source_tokenizer.encode_batch(list(texts))]
        answers = [""] * len(texts)
        waiting = [i for i in sorted(range(len(texts)), key=lambda i: -len(sources[i])) if texts[i].strip()]
        self.model.eval()
        while waiting:
            size = max(1, max_tokens // (len(sources[waiting[0]]) + 1))
            chosen, waiting = waiting[:size], waiting[size:]
            for index, ids in zip(chosen, self._search([sources[i] for i in chosen], beam), strict=True):
                answers[index] = self.target_tokenizer.decode(ids)
        return answers

    def _clip(self, ids: list[int]) -> list[int]:
        return ids[: (self.model.config.max_len or 512) - 1]

    def _search(self, sources: list[list[int]], beam: int | None) -> list[list[int]]:
        device = next(self.model.parameters()).device
        longest = max(len(ids) for ids in sources) + 1
        source = torch.tensor([[*ids, END] + [PAD] * (longest - len(ids) - 1) for ids in sources], device=device)
        limit = self.model.config.max_len or 10**9
        max_new = min(int(longest * self.generation.max_ratio) + 10, limit)
        width = self.generation.beam if beam is None else beam
        if width == 1:
            return translate_greedily(self.model, source, source != PAD, begin=BEGIN, end=END, max_new=max_new)
        found = translate_by_beam(
            self.model,
            source,
            source != PAD,
            begin=BEGIN,
            end=END,
            max_new=max_new,
            width=width,
            length_penalty=self.generation.length_penalty,
        )
        return [hypotheses[0].tokens for hypotheses in found]

    def explain(self, text: str) -> Explained:
        """Translate one text, and look again at where the decoder looked as it wrote each piece.

        Both lists end with the end of the text, which the model reads and writes too.
        """
        source = self._clip(self.source_tokenizer.encode_batch([text])[0])
        target = self._search([source], None)[0]
        device = next(self.model.parameters()).device
        with torch.inference_mode(), capture_attention(self.model, kinds=["cross_attn"]) as captured:
            self.model(torch.tensor([[*source, END]], device=device), torch.tensor([[BEGIN, *target]], device=device))
        weights = torch.stack([captured[name][0] for name in captured])
        return Explained(
            self.target_tokenizer.decode(target),
            [*self.source_tokenizer.tokens(source), "(end)"],
            [*self.target_tokenizer.tokens(target), "(end)"],
            weights.float().cpu(),
        )

    def score(self, pairs: Sequence[Pair], *, beam: int | None = None) -> TranslationScores:
        """BLEU and chrF of the translations of these sources against their targets."""
        return score_translations(
            self.translate([pair.source for pair in pairs], beam=beam), [pair.target for pair in pairs]
        )
