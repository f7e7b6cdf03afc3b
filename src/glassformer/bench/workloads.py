"""Benchmark workloads: three models of usual size with random weights. All engines generate equally many tokens."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch

from glassformer.checkpoint.hf import FAMILIES, export_model
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.decoding import Engine, GenerationConfig
from glassformer.models import ModelConfig, build_model, preset
from glassformer.models.costs import count_parameters, forward_flops
from glassformer.pipelines.pipeline import LineRequest
from glassformer.runtime.step_runner import TextModel

Answers = list[str] | list[list[int]]
"""What an engine generated for each input: a text or its tokens."""
Write = Callable[[], Answers]
"""A function that runs an engine once."""


@dataclass(frozen=True)
class Workload:
    """A benchmark: a model, the number of input tokens (`n_read`) and the number of generated tokens (`n_written`).

    Inputs have `n_read` tokens, or `n_read_least` to `n_read` if that is not 0.
    """

    name: str
    config: ModelConfig
    family: str
    """The HF architecture family of the model, such as "gpt2", so that HF can run the same weights."""
    n_read: int
    n_written: int
    n_read_least: int = 0

    @property
    def is_ragged(self) -> bool:
        """Whether inputs have different lengths."""
        return self.n_read_least > 0

    @property
    def mean_read(self) -> int:
        """The mean number of input tokens."""
        return (self.n_read_least + self.n_read) // 2 if self.is_ragged else self.n_read

    @property
    def end(self) -> int:
        """The token that ends a text. Here no text ends before it has `n_written` tokens."""
        return 0

    @property
    def begin(self) -> int | None:
        """The token that starts a translation: the padding token, as in Marian. None without an encoder."""
        return self.padding if self.config.n_encoder_layers else None

    @property
    def padding(self) -> int:
        """The padding token: the last of the vocabulary."""
        return self.config.vocab_size - 1

    def model(self) -> TextModel:
        """Return the Glassformer model with random weights from a fixed seed, in eval mode."""
        torch.manual_seed(0)
        model = build_model(self.config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    # Twice the usual initialization, so that layers change their input and the generated tokens vary.
                    wide = 1 if "embeddings" in name else 2
                    parameter.normal_(std=wide * parameter.shape[-1] ** -0.5)
                elif name == "head.out_proj.bias":
                    parameter.zero_()
            table = model.get_parameter("source_embeddings.tokens.weight" if self.begin else "embeddings.tokens.weight")
            table[self.padding] = 0  # as in Marian; no text contains it
        return model  # type: ignore[return-value]

    def for_hf(self, model: TextModel) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return the config values and the tensors of our `model` in the format of HF Transformers."""
        values, tensors = export_model(model, FAMILIES[self.family])
        ids: dict[str, int | None] = {"pad_token_id": self.padding, "eos_token_id": self.end, "bos_token_id": 1}
        if self.begin is not None:
            ids |= {"decoder_start_token_id": self.begin, "forced_eos_token_id": None}
        return values | ids, tensors

    def inputs(self, batch: int) -> list[list[int]]:
        """Return `batch` random inputs. Unless the workload is ragged, no engine needs padding."""
        random = torch.Generator().manual_seed(1)
        inputs: list[list[int]] = torch.randint(2, self.padding, (batch, self.n_read), generator=random).tolist()
        if not self.is_ragged:
            return inputs
        lengths = torch.randint(self.n_read_least, self.n_read + 1, (batch,), generator=random).tolist()
        return [tokens[:length] for tokens, length in zip(inputs, lengths, strict=True)]

    def search(self, beam: int) -> GenerationConfig:
        """Return the settings with which Glassformer generates exactly `n_written` tokens; `beam` is the beam width."""
        return GenerationConfig(
            max_new_tokens=self.n_written,
            min_new_tokens=self.n_written,
            num_beams=beam,
            suppress_tokens=(self.padding,),
        )

    def tokenizer(self) -> tokenizers.Tokenizer:
        """Return a new tokenizer that has a word for each token id, such as t17."""
        words = {f"t{index}": index for index in range(self.config.vocab_size)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="t1"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        return tokenizer

    def save(self, folder: Path, model: TextModel) -> None:
        """Write our `model` to a new HF folder, with `tokenizer`."""
        special = {"eos_token": f"t{self.end}", "pad_token": f"t{self.padding}"}
        values, _ = self.for_hf(model)
        ids = {key: value for key, value in values.items() if key.endswith("_token_id")}
        texts = {
            "tokenizer.json": self.tokenizer().to_str(),
            "tokenizer_config.json": json.dumps(special),
            "generation_config.json": json.dumps({"max_length": self.n_written + 1, "num_beams": 1}),
        }
        save_hf_folder(folder, model, family=FAMILIES[self.family], values=ids, texts=texts)

    def lines(self, inputs: Sequence[Sequence[int]]) -> list[str]:
        """Return the inputs as lines of text for `tokenizer`."""
        return [" ".join(f"t{token}" for token in tokens) for tokens in inputs]

    def ours(self, pipeline: Any, inputs: Sequence[Sequence[int]], beam: int) -> Write:
        """Return a function that answers these inputs with a loaded pipeline, by the call that `run` makes."""
        lines, request = self.lines(inputs), LineRequest(generation=self.search(beam))

        def write() -> Answers:
            return [answer.line for answer in pipeline.answer_lines(lines, request)]

        return write

    def as_command(self, folder: Path, inputs: Sequence[Sequence[int]], beam: int, options: Sequence[str]) -> Write:
        """Return a function that answers these inputs with `glassformer run` in a new process.

        `folder` holds a model that `save` wrote, and `options` are further options of `run`.
        """
        source, target = folder.with_name("lines.txt"), folder.with_name("answers.txt")
        source.write_text("\n".join(self.lines(inputs)) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "glassformer", "run", str(folder), "--input", str(source), "--quiet"]
        command += ["--output", str(target), "--beam", str(beam), "--max-new-tokens", str(self.n_written), *options]

        def write() -> Answers:
            target.unlink(missing_ok=True)
            subprocess.run(command, check=True)
            return target.read_text(encoding="utf-8").splitlines()

        return write

    def by_engine(self, model: TextModel, inputs: Sequence[Sequence[int]]) -> Write:
        """Return a function that generates greedily with the batching engine, all inputs as separate requests.

        Nothing is reused from one run to the next.
        """
        n = len(inputs)
        room = n * (self.n_read + self.n_written)
        engine = Engine(model, end=self.end, begin=self.begin, max_rows=n, max_tokens=room, max_waiting=n, min_reuse=0)

        def write() -> Answers:
            requests = [engine.submit(tokens, self.search(1)) for tokens in inputs]
            engine.run()
            return [request.texts[0].tokens for request in requests]

        return write

    def flops(self, batch: int, beam: int) -> float:
        """Return the FLOPs of one run: the encoder once per input, the decoder once per input and hypothesis.

        `beam` is the number of hypotheses. For each of them a decoder-only model also reads the input.
        """
        given: dict[str, int] = {"batch": batch}
        if self.begin is None:
            # Two texts of half the length have half the attention, as a causal text does.
            half = forward_flops(self.config, **given, target_length=(self.mean_read + self.n_written) // 2)
            return beam * 2 * half
        whole = forward_flops(self.config, **given, source_length=self.mean_read, target_length=self.n_written)
        encoder = forward_flops(self.config, **given, source_length=self.mean_read, target_length=1)
        return encoder + beam * (whole - encoder)

    def bytes_moved(self, batch: int, beam: int, bytes_a_number: float) -> float:
        """Return about how many bytes one run reads: at each step the decoder's weights and the cached keys and values.

        `bytes_a_number` is the size of a weight or cached number.
        """
        config = self.config
        weights = count_parameters(config)
        if self.begin is not None:  # about half of the layers belong to the encoder
            layers = config.n_encoder_layers + config.n_decoder_layers
            weights = int(weights * config.n_decoder_layers / layers)
        kept = 2 * config.n_decoder_layers * config.kv_heads * config.head_size
        length = self.n_written / 2 + self.mean_read
        return self.n_written * bytes_a_number * (weights + batch * beam * kept * length)


def tokens_of(answers: Answers) -> list[list[int]]:
    """Return the tokens of each answer. Texts are those of `Workload.tokenizer`."""
    return [[int(word[1:]) for word in one.split()] if isinstance(one, str) else one for one in answers]


def workloads() -> dict[str, Workload]:
    """Return the workloads by name. "requests" is gpt2 with mixed lengths, "context" a llama with 32,000 tokens."""
    marian = preset("marian", vocab_size=8000, activation="relu", max_len=256, dropout=0.0, embedding_dropout=0.0)
    return {
        "translation": Workload("translation", marian, "marian", 25, 25),
        "gpt2": Workload("gpt2", preset("gpt2"), "gpt2", 16, 256),
        "llama": Workload("llama", preset("llama"), "llama", 16, 128),
        "context": Workload("context", _llama_1b(), "llama", 32_000, 256),
        "requests": Workload("requests", preset("gpt2"), "gpt2", 96, 64, 8),
    }


def _llama_1b() -> ModelConfig:
    """Return the config of a Llama of 1.2 billion parameters, with 32 query heads and 8 key-value heads of size 64."""
    sizes = {"n_decoder_layers": 16, "d_model": 2048, "n_heads": 32, "n_kv_heads": 8, "d_ff": 8192}
    return preset("llama", vocab_size=128_256, max_len=131_072, **sizes)
