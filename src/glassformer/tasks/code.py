"""Code modeling: train a decoder on source files, so that it completes code and fills in gaps."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from glassformer.base.fields import Count, Probability
from glassformer.data.batching.fill_in_middle import encode_fill_in_middle, fill_in_middle_parts
from glassformer.data.corpora.standard_library import standard_library
from glassformer.data.readers.code_problems import read_problems
from glassformer.data.readers.text_documents import Document, SplitDocuments
from glassformer.metrics.sandbox import SandboxMode, check_sandbox
from glassformer.pipelines.blanks import GAP_TOKENS
from glassformer.tasks.configs.small_models import small_decoder
from glassformer.tasks.decoder_task import DecoderTask
from glassformer.tasks.evaluation import EvalOptions, ScoreReport
from glassformer.tasks.language import LanguageConfig, TextFileData

if TYPE_CHECKING:
    from glassformer.data.batching.token_stream import TokenStream
    from glassformer.pipelines.code_model import CodeModel

CHARACTERS = 2
"""Assumed number of characters per token, chosen low, so that a piece of `CHARACTERS * context` characters fits into
the context."""


@dataclass(frozen=True, kw_only=True)
class CodeData(TextFileData):
    """Options that choose the data for code modeling: source files, folders of them, or a corpus."""

    suffixes: tuple[str, ...] = (".py",)
    """Endings of the files that are read in a folder."""
    corpus: str = ""
    """Use a named corpus instead of files: standard-library, the source code of Python's standard library."""

    def _corpus(self) -> SplitDocuments:
        return standard_library("code")


@dataclass(frozen=True, kw_only=True)
class CodeConfig(LanguageConfig):
    """The complete config of training a code model."""

    FIRST_OPTIONS = ("data", "valid", "suffixes")

    data: CodeData = field(default_factory=CodeData)  # type: ignore[assignment]  # files are cut for filling in gaps
    context: Count = 256
    """Number of tokens that the model reads at once."""
    fim: Probability = 0.5
    """Probability that a piece of code is learned with its middle last, so that the model can fill in gaps."""


@dataclass(frozen=True, kw_only=True)
class CodeEvalOptions(EvalOptions):
    """Options that `glassformer eval` has for code models only, to score programs that the model writes."""

    problems: Path | None = None
    """Problems with tests (.jsonl with text and test_list, as MBPP), to score by pass@k; programs run in a sandbox."""
    samples: Count = 1
    """Programs per problem; one is greedy, more are sampled."""
    sandbox: SandboxMode = "strict"
    """Protection of programs: strict refuses to run them where the system cannot restrict them, weak runs them."""

    @property
    @override
    def needs_data(self) -> bool:
        return self.problems is None


class Code(DecoderTask):
    """Train a decoder that completes source code and fills in gaps."""

    name, title, unit, sample_line = "code", "A model of code", "files", "def add(a, b):"
    Config, EvalOptions = CodeConfig, CodeEvalOptions
    special_tokens = GAP_TOKENS

    @override
    def has_documents(self, train: Iterable[Document]) -> bool:
        """Return True, because each piece of code that is cut for fill-in-the-middle is a separate document."""
        return True

    @override
    def write(self, folder: Path, documents: Iterable[Document], pipeline: Any) -> "TokenStream":
        """Tokenize the training code and write it as one stream of tokens to `folder`.

        Some pieces are written with their middle last (fill-in-the-middle), so that the model learns to fill gaps.
        """
        from glassformer.data.batching.token_stream import write_stream
        from glassformer.pipelines.pretrained_base import gap_tokens

        config, tokenizer = self.config, pipeline.tokenizer
        marks = gap_tokens(tokenizer)
        if marks is None and config.fim:
            raise ValueError(
                f"fim={config.fim}: the tokenizer of --from {config.start_from} has no tokens that mark a gap: "
                "expected --fim 0"
            )
        before, after, middle = (-1, -1, -1) if marks is None else map(tokenizer.special_id, marks)
        texts = (
            parts
            for document in documents
            for parts in fill_in_middle_parts(
                document, chance=config.fim, longest=CHARACTERS * config.context, seed=config.train.seed
            )
        )
        return write_stream(
            folder,
            texts,
            lambda chunk: encode_fill_in_middle(chunk, tokenizer.encode_plain_batch, (before, after, middle)),
            has_documents=True,
            **self.marks(pipeline),
            size=lambda parts: sum(len(part.encode()) for part in parts if part),
        )

    @override
    @classmethod
    def evaluate(cls, pipeline: "CodeModel", data: CodeData, options: CodeEvalOptions) -> ScoreReport:
        """Return pass@k of programs for `options.problems`; without problems, the scores on the text of `data`.

        Prints on stderr which protections of the sandbox are active.
        """
        if options.problems is None:
            return super().evaluate(pipeline, data, options)
        problems = read_problems(options.problems)
        print(check_sandbox(options.sandbox), file=sys.stderr)
        scores = pipeline.solve(problems, samples=options.samples, sandbox=options.sandbox)
        method = "greedy" if options.samples == 1 else f"{options.samples} samples for each problem"
        return ScoreReport({"": scores}, f"{method}, the problems of {options.problems}")

    @override
    def unused(self) -> set[str]:
        """Return the names of refused options: those of all decoders, and word dropout, which would hide gap tokens."""
        return {*super().unused(), "word_dropout"}

    @override
    @classmethod
    def demo(cls) -> CodeConfig:
        """Return the config of a model that is trained on the source code of Python's standard library."""
        data, model = CodeData(corpus="standard-library"), small_decoder(vocab_size=4096)
        config = CodeConfig(data=data, context=128, model=model, fim=0.25)
        return replace(config, train=replace(config.train, minutes=2.4, eval_every=1000, save_every=1000))
