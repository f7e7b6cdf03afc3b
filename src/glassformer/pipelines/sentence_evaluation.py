"""Run a model that Glassformer loaded in the evaluators of sentence-transformers.

Their evaluators call a few methods of a model, such as `encode` and `predict`. The classes here have these methods, so
that `EmbeddingSimilarityEvaluator(first, second, scores)(SentenceModel(pipeline))` scores a loaded pipeline.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.encoder_pipeline import EncoderPipeline
from glassformer.pipelines.pair_scorer import PairScorer

QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
"""Names of the prompts that sentence-transformers puts before queries and documents; the first that a model has."""


class EvaluationRecord:
    """Takes the scores that an evaluator reports, in place of a model card."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def set_evaluation_metrics(self, evaluator: Any, metrics: dict[str, float], *args: Any) -> None:
        """Keep the scores of an evaluator."""
        self.metrics |= metrics


class SentenceModel:
    """An encoder with the methods of `SentenceTransformer` that evaluators call."""

    def __init__(self, pipeline: Embedder | EncoderPipeline[Any], *, similarity: str | None = None):
        """Wrap a pipeline. `similarity` is one of `SIMILARITIES`; None is that of the model's folder, or the cosine."""
        if similarity is None:
            similarity = pipeline.similarity if isinstance(pipeline, Embedder) else "cosine"
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity={similarity!r}: expected one of {', '.join(SIMILARITIES)}")
        self.pipeline = pipeline
        self.similarity_fn_name = similarity
        self.model_card_data = EvaluationRecord()
        self.prompts = dict(pipeline.prompts) if isinstance(pipeline, Embedder) else {}

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: str | None = None,
        **ignored: Any,
    ) -> Any:
        """Return the vectors of texts, as an array or a tensor. Options about speed and display have no effect.

        Raises ValueError for a `precision` other than float32, and for an unknown prompt.
        """
        if precision not in (None, "float32"):
            raise ValueError(f"precision={precision!r}: expected 'float32'")
        if prompt is None and prompt_name is not None:
            if prompt_name not in self.prompts:
                known = ", ".join(self.prompts) or "none, because the model has no prompts"
                raise ValueError(f"prompt_name={prompt_name!r}: expected one of {known}")
            prompt = self.prompts[prompt_name]
        texts = sentences if isinstance(sentences, str) else [str(text) for text in sentences]
        if isinstance(self.pipeline, Embedder):
            found = self.pipeline.embed(texts, prompt=prompt)
        else:
            found = self.pipeline.embed([prompt + text for text in texts] if prompt else texts)
        found = found[..., :truncate_dim]
        found = F.normalize(found, dim=-1) if normalize_embeddings else found
        return found if convert_to_tensor or not convert_to_numpy else found.numpy()

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return the vectors of queries, with the model's prompt for queries if it has one."""
        return self.encode(sentences, **self._with_prompt(options, QUERY_PROMPTS))

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return the vectors of documents, with the model's prompt for documents if it has one."""
        return self.encode(sentences, **self._with_prompt(options, DOCUMENT_PROMPTS))

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Return the similarity of every vector of `first` (N, C) with every vector of `second` (M, C), as (N, M)."""
        return SIMILARITIES[self.similarity_fn_name](torch.as_tensor(first), torch.as_tensor(second))

    def _with_prompt(self, options: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        if options.get("prompt") is not None or options.get("prompt_name") is not None:
            return options
        return {**options, "prompt_name": next((name for name in names if name in self.prompts), None)}


class CrossEncoderModel:
    """An encoder of pairs with the methods of sentence-transformers' `CrossEncoder` that evaluators call."""

    def __init__(self, pipeline: PairScorer | Classifier):
        self.pipeline = pipeline
        self.num_labels = pipeline.model.config.n_labels
        self.model_card_data = EvaluationRecord()

    def predict(
        self, sentences: Sequence[Sequence[str]], *, convert_to_tensor: bool = False, **ignored: Any
    ) -> np.ndarray[Any, Any] | Tensor:
        """Return the score of each pair of texts (N,), or for several classes the score of each class (N, classes)."""
        pairs = [(str(first), str(second)) for first, second in sentences]
        if isinstance(self.pipeline, PairScorer):
            found = torch.tensor(self.pipeline.score_pairs(pairs))
        else:
            rows = self.pipeline.read(pairs)
            found = torch.stack(self.pipeline.answers(rows)) if rows else torch.empty(0, self.num_labels or 0)
        return found if convert_to_tensor else found.numpy()


SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda one, two: F.normalize(one, dim=-1) @ F.normalize(two, dim=-1).T,
    "dot": lambda one, two: one @ two.T,
    "euclidean": lambda one, two: -torch.cdist(one, two),
    "manhattan": lambda one, two: -torch.cdist(one, two, p=1.0),
}
"""Similarities of all pairs of vectors, by the names that sentence-transformers gives them."""
