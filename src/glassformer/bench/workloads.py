"""Benchmark workloads: three models of usual size with random weights. All engines generate equally many tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glassformer.checkpoint.hf import FAMILIES, export_model
from glassformer.decoding import GenerationConfig, generate
from glassformer.models import ModelConfig, build_model, preset
from glassformer.models.costs import count_parameters, forward_flops
from glassformer.runtime.step_runner import TextModel

Write = Callable[[], list[list[int]]]
"""A function that runs an engine once and returns the tokens that it generated for each input."""


@dataclass(frozen=True)
class Workload:
    """A benchmark: a model, the number of input tokens (`n_read`) and the number of generated tokens (`n_written`)."""

    name: str
    config: ModelConfig
    family: str
    """The HF architecture family of the model, such as "gpt2", so that HF can run the same weights."""
    n_read: int
    n_written: int

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
        """Return `batch` random inputs of `n_read` tokens each. As all are equally long, no engine needs padding."""
        random = torch.Generator().manual_seed(1)
        return torch.randint(2, self.padding, (batch, self.n_read), generator=random).tolist()

    def search(self, beam: int) -> GenerationConfig:
        """Return the settings with which Glassformer generates exactly `n_written` tokens; `beam` is the beam width."""
        return GenerationConfig(
            max_new_tokens=self.n_written,
            min_new_tokens=self.n_written,
            num_beams=beam,
            suppress_tokens=(self.padding,),
        )

    def ours(self, model: TextModel, inputs: Sequence[Sequence[int]], beam: int) -> Write:
        """Return a function that generates with our `model` from these inputs."""

        def write() -> list[list[int]]:
            config, begin = self.search(beam), self.begin
            found = generate(model, inputs, config, begin=begin, end=self.end, batch_tokens=10**7)
            return [texts[0].tokens for texts in found]

        return write

    def flops(self, batch: int, beam: int) -> float:
        """Return the FLOPs of one run: the encoder once per input, the decoder once per input and hypothesis.

        `beam` is the number of hypotheses. For each of them a decoder-only model also reads the input.
        """
        given: dict[str, int] = {"batch": batch}
        if self.begin is None:
            whole = forward_flops(self.config, **given, target_length=self.n_read + self.n_written)
            return beam * whole
        whole = forward_flops(self.config, **given, source_length=self.n_read, target_length=self.n_written)
        encoder = forward_flops(self.config, **given, source_length=self.n_read, target_length=1)
        return encoder + beam * (whole - encoder)

    def bytes_moved(self, batch: int, beam: int, bytes_a_number: int) -> float:
        """Return about how many bytes one run reads: at each step the decoder's weights and the cached keys and values.

        `bytes_a_number` is the size of a weight or cached number.
        """
        config = self.config
        weights = count_parameters(config)
        if self.begin is not None:  # about half of the layers belong to the encoder
            layers = config.n_encoder_layers + config.n_decoder_layers
            weights = int(weights * config.n_decoder_layers / layers)
        kept = 2 * config.n_decoder_layers * config.kv_heads * config.head_size
        length = self.n_written / 2 + self.n_read
        return self.n_written * bytes_a_number * (weights + batch * beam * kept * length)


def workloads() -> dict[str, Workload]:
    """Return the workloads by name: "translation", "gpt2" and "llama"."""
    marian = preset("marian", vocab_size=8000, activation="relu", max_len=256, dropout=0.0, embedding_dropout=0.0)
    return {
        "translation": Workload("translation", marian, "marian", 25, 25),
        "gpt2": Workload("gpt2", preset("gpt2"), "gpt2", 16, 256),
        "llama": Workload("llama", preset("llama"), "llama", 16, 128),
    }
