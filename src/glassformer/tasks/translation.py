"""Translation: train an encoder-decoder to translate sentences from one language to another."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from typing_extensions import override

from glassformer.base.fields import Count
from glassformer.data.batching.pair_shards import SHARD_ROWS
from glassformer.data.corpora.catalog import CORPORA, open_corpus
from glassformer.data.readers.file_parts import FilePart, divide_aligned, divide_file
from glassformer.data.readers.pairs import Pair, PairReader
from glassformer.data.readers.records import Examples
from glassformer.data.readers.splits import split_pairs
from glassformer.data.readers.text_files import Span
from glassformer.models import ModelConfig
from glassformer.tasks.card import code, in_short
from glassformer.tasks.configs.divided_data import DividedData
from glassformer.tasks.configs.shared import Splits, TaskConfig
from glassformer.tasks.configs.small_models import small_encoder_decoder
from glassformer.tasks.evaluation import EvalOptions, ScoreReport, describe_scored
from glassformer.tasks.seq2seq_task import Seq2SeqTask

if TYPE_CHECKING:
    from glassformer.metrics import Scores
    from glassformer.pipelines.pretrained_base import PretrainedBase
    from glassformer.pipelines.text_to_text import TextToText
    from glassformer.pipelines.translator import Translator

LanguageOrigin = Literal["", "option", "corpus", "file names"]
"""Where the language of a side is known from: an option (--source-language or --target-language), the default of a
named corpus, or the file names; empty if the language is unknown."""

FIRST_LANGUAGES = {"source_language": "en", "target_language": "de"}
"""Default languages of older versions of Glassformer. Model folders of these versions store them even if the user gave
no option, and do not store `language_origins`."""


class SideLanguage(NamedTuple):
    """The language of one side of a translation pair, source or target."""

    code: str
    """The language's code as the user or the file names spell it, such as en; empty if it is unknown."""
    origin: LanguageOrigin
    """Where the code comes from."""

    def __str__(self) -> str:
        return f"{self.code} (guessed from the file names)" if self.origin == "file names" else self.code


@dataclass(frozen=True, kw_only=True)
class PairData(DividedData[Pair]):
    """Options that choose the data for translation: sentence pairs from files or a named corpus."""

    FILE_FIELDS = ("source", "target", "valid_source", "valid_target")
    SOURCE_FIELDS = DividedData.SOURCE_FIELDS | {*FILE_FIELDS, "folder"}
    TOKENS = "pairs"
    CORPORA = CORPORA
    NO_FILES = "no data: expected source and target files, or a corpus"

    source: tuple[Path, ...] = ()
    """Files to translate from: text files with one sentence per line, and their translations in --target; or, without
    --target, .tsv, .csv or .jsonl files that hold both sides (.gz too)."""
    target: tuple[Path, ...] = ()
    """Text files to translate into, line by line the translations of --source; none if --source is a table or
    .jsonl."""
    valid_source: tuple[Path, ...] = ()
    """Source files for validation; without them, one training pair in 25 is held out for it."""
    valid_target: tuple[Path, ...] = ()
    """Target files for validation."""
    source_column: str = "source"
    """Column of the source sentences in .tsv, .csv and .jsonl files."""
    target_column: str = "target"
    """Column of the target sentences in .tsv, .csv and .jsonl files."""
    corpus: str = ""
    """Use a named corpus instead of files: interface-texts, which is downloaded, or multi30k or tatoeba of --folder."""
    folder: Path | None = None
    """Folder with the files of multi30k or tatoeba, which are not downloaded."""
    source_language: str = ""
    """Language to translate from, such as en: it selects the texts of a named corpus, and info and the model card show
    it. (default: en for a corpus; for files as their names end, such as train.en)"""
    target_language: str = ""
    """Language to translate into, likewise. (default: de for a corpus)"""

    @override
    def parts(self, n_bytes: int) -> list[FilePart]:
        self._read(self.source, self.target)  # checks the files
        if self.target:
            both = zip(self.source, self.target, strict=True)
            return [part for source, target in both for part in divide_aligned(source, target, SHARD_ROWS)]
        return [part for path in self.source for part in divide_file(path, n_bytes)]

    @override
    def read_part(self, part: FilePart) -> PairReader:
        return self._reader(part.files[:1], part.files[1:], part.spans)

    @override
    def held_out_text(self, example: Pair) -> str:
        return example.source

    @override
    def example_of(self, record: Mapping[str, Any]) -> Pair:
        return Pair(record["source"], record["target"])

    @override
    def record_of(self, example: Pair) -> dict[str, str]:
        return example._asdict()

    language_tags: bool = False
    """Start each source with the language of its target file, such as >>de<< for train.de, to train one model for
    several languages."""

    @override
    def splits(self) -> Splits[Pair]:
        if self.prepared is not None:
            from glassformer.tasks.tokenized_corpus import TokenizedCorpus

            return Splits((), TokenizedCorpus(self.prepared).valid_examples(self))
        if self.corpus:
            source, target = (language.code for language in self.languages())
            sides = open_corpus(self.corpus, folder=self.folder, source=source, target=target)
            return Splits(sides["train"], sides["valid"], sides["test"])
        train = self._read(self.source, self.target)
        if self.valid_source:
            return Splits(train, self._read(self.valid_source, self.valid_target))
        halves = split_pairs(train, test=0.0)
        return Splits(halves["train"], halves["valid"])

    @override
    def examples(self) -> list[Pair]:
        if self.prepared is not None:
            return list(self.splits().valid)
        return Examples.of(self.splits().test if self.corpus else self._read(self.source, self.target))

    def languages(self) -> tuple[SideLanguage, SideLanguage]:
        """Return the language of the source and of the target, each with its origin: option, corpus or file names."""
        if self.prepared is not None:
            return self.original().languages()
        return (
            _language(self.source_language, "en" if self.corpus else "", self.source),
            _language(self.target_language, "de" if self.corpus else "", self.target),
        )

    @override
    def settings(self) -> dict[str, Any]:
        """Return the settings that `task.json` stores about the data, with each side's language and its origin."""
        found, sides = super().settings(), dict(zip(("source", "target"), self.languages(), strict=True))
        found["data"] |= {f"{side}_language": language.code for side, language in sides.items()}
        return {**found, "language_origins": {side: language.origin for side, language in sides.items()}}

    @override
    @classmethod
    def changed_settings(cls, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data options in a `task.json` that are not the default, without languages.

        A `task.json` of an older version has no origins; its languages are included if they were not the default then.
        """
        found = super().changed_settings(about)
        if "language_origins" in about:
            return {name: value for name, value in found.items() if name not in FIRST_LANGUAGES}
        return {name: value for name, value in found.items() if FIRST_LANGUAGES.get(name) != value}

    @override
    @classmethod
    def stored_languages(cls, about: Mapping[str, Any]) -> dict[str, dict[str, str] | None] | None:
        """Return the languages in a `task.json`, by side: code and origin, or None if the language is unknown.

        The result is None for a `task.json` of an older version, which did not store the origins.
        """
        origins, data = about.get("language_origins"), about.get("data")
        if not isinstance(origins, dict) or not isinstance(data, dict):
            return None
        codes = {side: str(data.get(f"{side}_language", "")) for side in ("source", "target")}
        return {
            side: {"code": code, "origin": str(origins.get(side, ""))} if code else None for side, code in codes.items()
        }

    def _read(self, source: tuple[Path, ...], target: tuple[Path, ...]) -> PairReader:
        if not source:
            raise ValueError(self.NO_FILES)
        return self._reader(source, target)

    def _reader(self, source: tuple[Path, ...], target: tuple[Path, ...], spans: Sequence[Span] = ()) -> PairReader:
        return PairReader(
            source,
            target,
            self.source_column,
            self.target_column,
            self.on_bad,
            spans=spans,
            language_tags=self.language_tags,
        )


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(TaskConfig):
    """The complete config of training a translator."""

    FIRST_OPTIONS = ("source", "target", "valid_source", "valid_target")

    data: PairData = field(default_factory=PairData)
    model: ModelConfig = field(default_factory=small_encoder_decoder)
    """The architecture. Its vocab_size is the most tokens the tokenizer may learn; with a source_vocab_size, source and
    target have different tokenizers."""


@dataclass(frozen=True, kw_only=True)
class TranslationEvalOptions(EvalOptions):
    """Options that `glassformer eval` has for translators only."""

    beam: Count | None = None
    """Beam width that is scored in addition to greedy search; 1 scores greedy search only. (default: that of the
    model)"""
    tokenized: str = ""
    """Language of the target, such as de, to add lower-cased tokenized BLEU as older papers report it."""


class Translation(Seq2SeqTask[Pair]):
    """Train a translator on sentence pairs."""

    name, title = "translation", "A translator"
    Config, EvalOptions = TranslationConfig, TranslationEvalOptions

    @override
    def adapt_base(self, base: "PretrainedBase") -> "PretrainedBase":
        """Put the codes of both languages beside the texts, for a model that has such codes (mBART, NLLB, M2M100)."""
        from glassformer.text.language_codes import read_layout

        layout, sides = read_layout(base.source), self.config.data.languages()
        if layout is None or (base.source is not base.target and not any(side.code for side in sides)):
            return base  # a model without codes, or one that was fine-tuned with the codes before
        codes = [
            layout.find(side.code, f"--{name}-language") for name, side in zip(("source", "target"), sides, strict=True)
        ]
        return base.with_languages(layout, *codes)

    @override
    @classmethod
    def evaluate(
        cls, pipeline: "Translator | TextToText", data: PairData, options: TranslationEvalOptions
    ) -> ScoreReport:
        """Return the scores of greedy search, and of beam search unless its width is 1, on the pairs of `data`.

        They include tokenized BLEU if `options.tokenized` names a language.
        """
        pairs, beam = data.examples(), options.beam or pipeline.generation.num_beams
        scored_on = describe_scored(data, pairs, cls.unit)
        widths = {"greedy": 1} if beam == 1 else {"greedy": 1, f"beam {beam}": beam}
        scores = {name: _score(pipeline, pairs, width, options.tokenized) for name, width in widths.items()}
        return ScoreReport(scores, scored_on)

    @override
    def data_facts(self) -> list[tuple[str, str]]:
        """Return rows of the model card: the named corpus or the data files, the source and the target language."""
        data: PairData = self.config.data.original()
        if data.corpus in CORPORA:
            corpus = CORPORA[data.corpus]
            facts = [("corpus", f"{code(data.corpus)}: {corpus.about}; licence: {corpus.licence}")]
        else:
            held_out = "held out from the training files"
            facts = [
                ("source files", in_short(map(code, data.source))),
                ("target files", in_short(map(code, data.target)) or "in the source files"),
                ("validation files", in_short(map(code, data.validation_files())) or held_out),
            ]
        sides = zip(("source", "target"), data.languages(), strict=True)
        unknown = "not known; --{}-language names it"
        return [*facts, *((f"{side} language", str(one) or unknown.format(side)) for side, one in sides)]


def _score(pipeline: "Translator | TextToText", pairs: Sequence[Pair], beam: int, tokenized: str) -> "Scores":
    from glassformer.metrics import Scores, score_translations, tokenized_bleu

    references = [pair.target for pair in pairs]
    pipeline.n_truncated = 0  # both searches read the same sources, which are counted once
    found = pipeline.run([pair.source for pair in pairs], beam=beam)
    scores = score_translations(found, references)
    if not tokenized:
        return scores
    old = tokenized_bleu(found, references, tokenized)
    return Scores({**scores.values, "tokenized_bleu": old.bleu}, {**scores.signatures, "tokenized_bleu": old.signature})


def _language(given: str, of_corpus: str, files: Sequence[Path]) -> SideLanguage:
    if given:
        return SideLanguage(given, "option")
    if of_corpus:
        return SideLanguage(of_corpus, "corpus")
    endings = {path.name.removesuffix(".gz").rpartition(".")[2] for path in files}
    ending = endings.pop() if len(endings) == 1 else ""
    is_known = re.fullmatch(r"[a-z]{2}([-_][A-Za-z]{2,4})?", ending) and ending[:2] in LANGUAGE_CODES
    return SideLanguage(ending, "file names") if is_known else SideLanguage("", "")


CODES = """
aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja
jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb
nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq
sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGE_CODES = frozenset(CODES.split())
"""The two-letter language codes of ISO 639-1."""
