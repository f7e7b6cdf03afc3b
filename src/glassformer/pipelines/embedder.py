"""Turn texts into vectors with a pretrained encoder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from glassformer.checkpoint.hf.folder import open_weights, read_json_table
from glassformer.checkpoint.hf.sentence_folder import dense_tensors, read_sentence_modules, with_sentence_head
from glassformer.models import EncoderModel
from glassformer.models.blocks_from_config import make_head
from glassformer.models.heads import EmbeddingHead
from glassformer.pipelines.pipeline import (
    ONE_OR_MORE,
    READING_BATCH_TOKENS,
    LineAnswer,
    LineRequest,
    Pipeline,
    check_texts,
    vector_answer,
)
from glassformer.runtime.batches import read_in_batches
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer


class Embedder(Pipeline):
    """A pretrained encoder (BERT, sentence-transformers) that turns texts into vectors, with its tokenizer.

    Args:
        max_len: Most tokens of a text, if that is less than the model's limit.
        prompts: Texts to put before an input, by name.
        default_prompt: The text that is put before an input if no other is asked for.
        similarity: How the vectors of the model are compared: cosine, dot, euclidean or manhattan.
    """

    def __init__(
        self,
        model: EncoderModel,
        tokenizer: PretrainedTokenizer,
        *,
        max_len: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str = "",
        similarity: str = "cosine",
    ):
        if model.config.head != "embedding":
            raise ValueError(f"the model has head={model.config.head!r}: expected 'embedding'")
        self.model = model
        self.tokenizer = tokenizer
        limits = [limit for limit in (max_len, model.config.max_len) if limit is not None]
        self.max_len = min(limits, default=None)
        self.prompts, self.default_prompt, self.similarity = dict(prompts or {}), default_prompt, similarity

    def embed(
        self, texts: str | Sequence[str], *, batch_tokens: int | None = None, prompt: str | None = None
    ) -> Tensor:
        """Return a vector for each text: (N, C) for a list of N texts, (C,) for one string.

        The vectors have Euclidean length 1, unless a sentence-transformers folder does not normalize them. A text
        longer than `max_len` tokens is cut and counted in `n_truncated`. `prompt` is put before each text; None is the
        model's default prompt, which most models do not have.
        """
        if isinstance(texts, str):
            return self.embed([texts], batch_tokens=batch_tokens, prompt=prompt)[0]
        before = self.default_prompt if prompt is None else prompt
        rows = self._read([before + text for text in check_texts(texts, expected=ONE_OR_MORE)])
        batch_tokens = batch_tokens or self.batch_tokens or READING_BATCH_TOKENS
        device, pad = next(self.model.parameters()).device, self.tokenizer.pad or 0

        def read(chosen: list[int]) -> list[Tensor]:
            longest = max(1, *(len(rows[index]) for index in chosen))
            padded = [rows[index] + [pad] * (longest - len(rows[index])) for index in chosen]
            real = [[True] * len(rows[index]) + [False] * (longest - len(rows[index])) for index in chosen]
            tokens = torch.tensor(padded)
            self.model.embeddings.check("tokens", tokens)  # on the host: a wrong id makes a GPU unusable
            return list(self.model(tokens.to(device), torch.tensor(real, device=device)).float().cpu())

        with torch.inference_mode():
            sizes = [len(row) for row in rows]
            vectors = read_in_batches(self.model, sizes, read, batch_tokens=batch_tokens, label="computing vectors")
        return torch.stack(vectors) if vectors else torch.empty(0, self.model.config.embedding_size)

    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return the vector of each line as a JSON list."""
        return [vector_answer(row) for row in self.embed(check_texts(lines, "lines")).tolist()]

    def _read(self, texts: list[str]) -> list[list[int]]:
        rows = [self.tokenizer.encode(text) for text in texts]
        limit = self.max_len
        if limit is None:
            return rows
        self.count_truncated(sum(len(row) > limit for row in rows), len(rows), limit)
        # Keep the last token, which ends the text.
        return [row if len(row) <= limit else [*row[: limit - 1], row[-1]] for row in rows]


def read_embedder(
    model: EncoderModel, tokenizer: PretrainedTokenizer, folder: Path, *, allow_pickle: bool = False
) -> Embedder:
    """Return the pipeline of an encoder and the folder that it was read from. The model's head is replaced.

    A sentence-transformers folder lists what its head does (see `sentence_folder.py`); a dense layer is read here.
    """
    modules = read_sentence_modules(folder)
    config = with_sentence_head(folder, model.config)
    if config != model.config:
        model.config, model.head = config, make_head(config)
    if modules is None:
        return Embedder(model.eval(), tokenizer, max_len=longest_text(folder))
    if modules.dense is not None:
        assert isinstance(model.head, EmbeddingHead)
        assert model.head.transform is not None
        found = dense_tensors(modules.dense, open_weights(modules.dense, allow_pickle))
        model.head.transform.dense.load_state_dict(found)
        one = next(model.parameters())
        model.head.to(one.device, one.dtype if one.is_floating_point() else torch.float32)
    return Embedder(
        model.eval(),
        tokenizer,
        max_len=longest_text(modules.encoder),
        prompts=modules.prompts,
        default_prompt=modules.default_prompt,
        similarity=modules.similarity,
    )


def longest_text(folder: Path) -> int | None:
    """Return the most tokens per text that a sentence-transformers folder allows; None if it sets no limit."""
    path = folder / "sentence_bert_config.json"
    limit = read_json_table(path).get("max_seq_length") if path.is_file() else None
    return limit if isinstance(limit, int) and limit > 1 else None
