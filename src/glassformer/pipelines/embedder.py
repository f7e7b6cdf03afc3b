"""Turn texts into vectors with an encoder that was loaded from the format of another library."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from glassformer.checkpoint.hf.folder import read_json_table
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.models import EncoderModel, ModelConfig
from glassformer.models.blocks_from_config import make_head
from glassformer.models.heads import Pooling
from glassformer.pipelines.pipeline import (
    READING_BATCH_TOKENS,
    LineAnswer,
    LineRequest,
    Pipeline,
    check_texts,
    vector_answer,
)
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

POOLINGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}


class Embedder(Pipeline):
    """A pretrained encoder (BERT, sentence-transformers) that turns texts into vectors, with its tokenizer."""

    def __init__(self, model: EncoderModel, tokenizer: PretrainedTokenizer, *, max_len: int | None = None):
        if model.config.head != "embedding":
            raise ValueError(f"the model has head={model.config.head!r}: expected 'embedding'")
        self.model = model
        self.tokenizer = tokenizer
        limits = [limit for limit in (max_len, model.config.max_len) if limit is not None]
        self.max_len = min(limits, default=None)

    def embed(self, texts: str | Sequence[str], *, batch_tokens: int | None = None) -> Tensor:
        """Return a vector of Euclidean length 1 for each text: (N, C) for a list of N texts, (C,) for one string.

        A text longer than `max_len` tokens is cut and counted in `n_truncated`.
        """
        if isinstance(texts, str):
            return self.embed([texts], batch_tokens=batch_tokens)[0]
        rows = self._read(check_texts(texts))
        batch_tokens = batch_tokens or self.batch_tokens or READING_BATCH_TOKENS
        vectors = torch.empty(len(rows), self.model.config.d_model)
        waiting = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        device = next(self.model.parameters()).device
        pad = self.tokenizer.pad or 0
        with torch.inference_mode():
            while waiting:
                longest = max(len(rows[waiting[0]]), 1)
                chosen = waiting[: max(1, batch_tokens // longest)]
                waiting = waiting[len(chosen) :]
                padded = [rows[index] + [pad] * (longest - len(rows[index])) for index in chosen]
                real = [[True] * len(rows[index]) + [False] * (longest - len(rows[index])) for index in chosen]
                tokens = torch.tensor(padded)
                self.model.embeddings.check("tokens", tokens)  # on the host: a wrong id makes a GPU unusable
                found = self.model(tokens.to(device), torch.tensor(real, device=device))
                vectors[chosen] = found.float().cpu()
        return vectors

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return the vector of each line as a JSON list."""
        return [vector_answer(row) for row in self.embed(lines).tolist()]

    def _read(self, texts: list[str]) -> list[list[int]]:
        rows = [self.tokenizer.encode(text) for text in texts]
        limit = self.max_len
        if limit is None:
            return rows
        self.count_truncated(sum(len(row) > limit for row in rows), len(rows))
        # Keep the last token, which ends the text.
        return [row if len(row) <= limit else [*row[: limit - 1], row[-1]] for row in rows]


def with_pooling(folder: Path, config: ModelConfig) -> ModelConfig:
    """Return the config with its head replaced by an embedding head, which pools the hidden states into one vector.

    A sentence-transformers folder names the kind of pooling; for other folders it is the mean.
    """
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return config.with_head("embedding", pooling="mean")
    asked = [key for key, value in read_json_table(path).items() if key.startswith("pooling_mode_") and value is True]
    if len(asked) != 1 or asked[0] not in POOLINGS:
        raise UnsupportedModelError(
            f"{path} asks for {', '.join(asked) or 'nothing'}: expected one of {', '.join(POOLINGS)}"
        )
    if list(folder.glob("*_Dense")):
        raise UnsupportedModelError(f"{folder} has a dense layer after its pooling, which is not supported")
    return config.with_head("embedding", pooling=POOLINGS[asked[0]])


def as_embedder(model: EncoderModel, folder: Path) -> EncoderModel:
    """Replace the model's head by an embedding head, which has no parameters, and return it. See `with_pooling`."""
    if model.config.head != "embedding":
        model.config = with_pooling(folder, model.config)
        model.head = make_head(model.config)
    return model.eval()


def longest_text(folder: Path) -> int | None:
    """Return the most tokens per text that a sentence-transformers folder allows; None if it sets no limit."""
    path = folder / "sentence_bert_config.json"
    limit = read_json_table(path).get("max_seq_length") if path.is_file() else None
    return limit if isinstance(limit, int) and limit > 1 else None
