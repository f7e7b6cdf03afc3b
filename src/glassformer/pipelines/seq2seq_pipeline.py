"""The base class of trained pipelines whose model is an encoder-decoder, which generates a text from a source text."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, overload

from typing_extensions import override

from glassformer.base.checks import shown
from glassformer.checkpoint.hf.generation_settings import GENERATION
from glassformer.checkpoint.load_errors import refusing_wrong_values
from glassformer.checkpoint.safe_files import SealedFolder, read_json_object
from glassformer.data.batching.token_files import Kept
from glassformer.decoding import GeneratedText, GenerationConfig
from glassformer.models import EncoderDecoderModel
from glassformer.pipelines.pipeline import (
    WRITING_BATCH_TOKENS,
    Candidate,
    LineAnswer,
    LineRequest,
    ManyTexts,
    answer_of,
    candidate_of,
    check_texts,
    each_text,
)
from glassformer.pipelines.pipeline_registry import TASK
from glassformer.pipelines.pretrained_base import AnyTokenizer, PretrainedBase, read_base
from glassformer.pipelines.settings import check_settings
from glassformer.pipelines.trained_pipeline import ModelLoader, TrainedPipeline
from glassformer.text import Tokenizer
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.tokenizer import BEGIN, END

# Limits for the files of untrusted folders. Real models stay below a tenth of them.
MAX_BEAMS = 1 << 8
MAX_LENGTH = 1 << 16

Example = TypeVar("Example")


class Seq2SeqPipeline(TrainedPipeline[Example]):
    """A trained encoder-decoder with a source and a target tokenizer, which may be the same object."""

    kept: ClassVar[Kept] = "first"
    """Which tokens of a source that is too long the model reads: the "first" or the "last"."""
    search: ClassVar[GenerationConfig]
    """Generation settings of a newly trained model. A saved model has its own in its folder."""

    def __init__(
        self,
        model: EncoderDecoderModel,
        source_tokenizer: AnyTokenizer,
        target_tokenizer: AnyTokenizer,
        generation: GenerationConfig | None = None,
        **settings: Any,
    ):
        self.model: EncoderDecoderModel = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.generation = self.search if generation is None else generation
        self._settings = settings
        self.begin, self.end = BEGIN, END
        """Ids of the tokens with which the decoder starts, and which ends a text."""
        self.base: PretrainedBase | None = None
        """The pretrained model that it was fine-tuned from; None if its tokenizers are ours."""
        self.source_prefix = ""
        """What precedes each source text, such as "summarize: " for a pretrained T5."""

    def use_base(self, base: PretrainedBase) -> Self:
        """Use the special tokens of a pretrained model, whose tokenizers the pipeline has, and return the pipeline."""
        begin, end, pad = base.origin.get("decoder_start_token_id"), base.target.end, base.target.pad
        size = self.model.config.vocab_size
        if type(begin) is not int or not 0 <= begin < size or end is None:
            raise ValueError(
                f"the pretrained model has decoder_start_token_id={shown(begin)} and eos_token={shown(end)}: expected "
                f"ids below {size} in its config.json"
            )
        self.base, self.begin, self.end, self.base_files = base, begin, end, base.files
        first, last = (base.origin.get(f"forced_{side}_token_id") for side in ("bos", "eos"))
        if type(first) is int and 0 <= first < size and not self.generation.prefix:
            self.generation = replace(self.generation, prefix=(first,))
        if type(last) is int and 0 <= last < size and self.generation.forced_eos_token_id is None:
            self.generation = replace(self.generation, forced_eos_token_id=last)
        if pad is not None and pad != end and pad not in self.generation.suppress_tokens:
            # Marian has a logit for padding, which must never be generated.
            never = (*self.generation.suppress_tokens, pad)
            self.generation = replace(self.generation, suppress_tokens=never)
        return self

    @classmethod
    def read_folder(cls, folder: Path, read_model: ModelLoader) -> Self:
        """Load the model, its settings, its tokenizers and its generation settings from a model folder."""
        model, about = cls.open_folder(folder, EncoderDecoderModel, read_model)
        check_settings(cls, about, folder / TASK)
        base = read_base(folder)
        if base is not None:
            return cls(model, base.source, base.target, read_search(folder), **about).use_base(base)
        source, target = load_tokenizers(folder)
        return cls(model, source, target, read_search(folder), **about)

    @override
    def files(self) -> dict[str, str]:
        texts = {GENERATION: json.dumps(self.generation.to_dict(), indent=2)}
        if not isinstance(self.source_tokenizer, Tokenizer) or not isinstance(self.target_tokenizer, Tokenizer):
            return {**self.base_files, **texts}
        if self.source_tokenizer is self.target_tokenizer:
            return texts | {"tokenizer.json": self.source_tokenizer.to_json()}
        texts["source_tokenizer.json"] = self.source_tokenizer.to_json()
        return texts | {"target_tokenizer.json": self.target_tokenizer.to_json()}

    @override
    def settings(self) -> dict[str, Any]:
        return self._settings

    @overload
    def write(self, texts: str, *, beam: int | None = None, batch_tokens: int | None = None) -> str: ...
    @overload
    def write(self, texts: ManyTexts, *, beam: int | None = None, batch_tokens: int | None = None) -> list[str]: ...
    def write(
        self, texts: str | ManyTexts, *, beam: int | None = None, batch_tokens: int | None = None
    ) -> str | list[str]:
        """Generate one text for each source text. One string gives one string. A blank source gives a blank text.

        A source longer than the model's limit raises a ValueError, or is cut with `truncate`. `beam` is the beam width;
        1 is greedy search, and None uses the model's generation settings.
        """

        def write(several: list[str]) -> list[str]:
            found = self.candidates(several, self._search(beam), batch_tokens=batch_tokens)
            return [one[0].text if one else "" for one in found]

        return each_text(texts, write)

    def candidates(
        self,
        texts: Sequence[str],
        generation: GenerationConfig | None = None,
        *,
        with_scores: bool = False,
        batch_tokens: int | None = None,
    ) -> list[list[Candidate]]:
        """Generate `num_return_sequences` texts for each source text, best first; none for a blank source."""
        config, texts = generation or self.generation, check_texts(texts)
        with_text = [index for index, text in enumerate(texts) if text.strip()]
        prefixed = [with_prefix(self.source_prefix, texts[index]) for index in with_text]
        encoded = self.source_tokenizer.encode_batch(prefixed)
        found = self._generate(self.read_sources(encoded), config, with_scores, batch_tokens)
        answers: list[list[Candidate]] = [[] for _ in texts]
        for index, several in zip(with_text, found, strict=True):
            answers[index] = [candidate_of(one, one.text or "", config.length_penalty) for one in several]
        return answers

    def scoring_method(self) -> str:
        """Describe how `score` generates text, by the generation settings: "greedy", "sampling" or "beam 4"."""
        if self.generation.do_sample:
            return "sampling"
        return "greedy" if self.generation.num_beams == 1 else f"beam {self.generation.num_beams}"

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Generate an answer to each line, which is a source text. A blank line stays blank."""
        found = self.candidates(check_texts(lines, "lines"), request.generation, with_scores=request.with_scores)
        return [answer_of(one, request) for one in found]

    @overload
    def run(self, lines: str, *, beam: int | None = None) -> str: ...
    @overload
    def run(self, lines: ManyTexts, *, beam: int | None = None) -> list[str]: ...
    def run(self, lines: str | ManyTexts, *, beam: int | None = None) -> str | list[str]:
        """Return the generated text for each line. One string gives one string.

        `beam` is the beam width; None uses the model's generation settings.
        """
        request = LineRequest(generation=self._search(beam))
        return each_text(lines, lambda several: self._run(several, request), "lines")

    def _generate(
        self, sources: list[list[int]], config: GenerationConfig, with_scores: bool, batch_tokens: int | None = None
    ) -> list[list[GeneratedText]]:
        return self.write_tokens(
            sources,
            config,
            begin=self.begin,
            end=self.end,
            with_log_probs=with_scores,
            tokenizer=self.target_tokenizer,
            batch_tokens=batch_tokens or self.batch_tokens or WRITING_BATCH_TOKENS,
        )

    def encode_source(self, text: str) -> list[int]:
        """Return the token ids of one line as the model reads it, without END."""
        return self.source_tokenizer.encode(text)

    def read_sources(self, sources: Sequence[list[int]]) -> list[list[int]]:
        """Append END to the token ids of each source. One that exceeds `max_len` with END is refused or cut."""
        limit = self.model.config.max_len
        room = (limit or 1) - 1
        tokenizer = self.source_tokenizer
        if not isinstance(tokenizer, Tokenizer):  # its special tokens are there already
            return self.fit_inputs(sources, limit, lambda ids: cut_marked(ids, limit or 1, self.kept, tokenizer))

        def cut(ids: list[int]) -> list[int]:
            return [*(ids[-1 - room : -1] if self.kept == "last" else ids[:room]), END]

        return self.fit_inputs([[*ids, END] for ids in sources], limit, cut)

    def _search(self, beam: int | None) -> GenerationConfig:
        return self.generation if beam is None else replace(self.generation, num_beams=beam)


def with_prefix(prefix: str, text: str) -> str:
    """Put the prefix of a task before a source text, unless the text has it already."""
    return text if prefix.strip() and text.startswith(prefix) else prefix + text


def cut_marked(ids: list[int], limit: int, kept: Kept, tokenizer: PretrainedTokenizer) -> list[int]:
    """Return at most `limit` of the ids of a text with special tokens, which stay at both ends.

    `kept` decides which tokens of the text are kept, the "first" or the "last" ones.
    """
    if len(ids) <= limit:
        return ids
    is_special = [index in tokenizer.special_ids for index in ids]
    n_before = is_special.index(False) if False in is_special else 0
    n_after = max(1, is_special[::-1].index(False) if False in is_special else 0)
    if kept != "last":
        return [*ids[: limit - n_after], *ids[len(ids) - n_after :]]
    return [*ids[:n_before], *ids[len(ids) - limit + n_before :]]


def read_search(folder: Path) -> GenerationConfig:
    """Return the generation settings of a model folder. Raise if they would take too much memory or time."""
    file = SealedFolder(folder).file(GENERATION)
    with refusing_wrong_values(file):
        search = GenerationConfig.from_dict(read_json_object(file))
        check_cost(file, search.num_beams, search.max_new_tokens)
    return search


def check_cost(path: Path, beams: int, longest: int) -> None:
    """Raise ValueError if the generation settings in `path` ask for more beams or tokens than any real model needs."""
    if not 1 <= beams <= MAX_BEAMS or not 1 <= longest <= MAX_LENGTH:
        raise ValueError(
            f"{path} asks for {shown(beams)} beams and texts of {shown(longest)} tokens: expected at most {MAX_BEAMS}, "
            f"and {MAX_LENGTH}"
        )


def load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the source and the target tokenizer of a model folder.

    They are the same object if the folder has one tokenizer for both.
    """
    joint = folder / "tokenizer.json"
    if joint.is_file():
        tokenizer = Tokenizer.load(joint)
        return tokenizer, tokenizer
    sides = [folder / f"{side}_tokenizer.json" for side in ("source", "target")]
    for side in sides:
        if not side.is_file():
            raise FileNotFoundError(f"{folder} has no tokenizer: expected tokenizer.json, or {side.name}")
    return Tokenizer.load(sides[0]), Tokenizer.load(sides[1])
