"""Choose the pipeline of a pretrained encoder by its head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.checkpoint.hf.sentence_folder import read_sentence_modules
from glassformer.checkpoint.hf.values import shown
from glassformer.models import EncoderModel, ModelConfig
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.embedder import Embedder, read_embedder
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.pair_scorer import PairScorer, read_activation
from glassformer.pipelines.pretrained_tagger import PretrainedTagger
from glassformer.pipelines.tagger import Tagger
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from glassformer.text.tag_viterbi import TagPaths

KEPT_HEADS = ("sequence_class", "token_class", "span")
"""Heads that a pipeline uses. Other encoders become embedders."""
OVERLAP, LONGEST_ANSWER = 128, 30
"""Settings of an extractor of spans, as the extraction task has them by default."""


def encoder_config(folder: Path, config: ModelConfig) -> ModelConfig:
    """Return the config to load: with its head if a pipeline uses it, else with an embedding head without parameters.

    The head of a sentence-transformers folder is made later (`read_embedder`), because its tensors are in other files.
    """
    if config.head in KEPT_HEADS and read_sentence_modules(folder) is None:
        return config
    return config.with_head("embedding", pooling="mean")


def read_encoder_pipeline(
    model: EncoderModel,
    tokenizer: PretrainedTokenizer,
    folder: Path,
    origin: Mapping[str, Any],
    *,
    allow_pickle: bool = False,
) -> Classifier | Extractor | PairScorer | PretrainedTagger | Tagger | Embedder:
    """Return the pipeline for the head of a pretrained encoder. `origin` holds the values of HF's `config.json`."""
    if model.config.head not in KEPT_HEADS:
        return read_embedder(model, tokenizer, folder, allow_pickle=allow_pickle)
    reader = Reader(tokenizer, {})
    if model.config.head == "span":
        return Extractor(model.eval(), reader, abstains=False, overlap=OVERLAP, longest_answer=LONGEST_ANSWER)
    names = class_names(origin, model.config.n_labels or 0)
    if model.config.head == "token_class":
        return _tagger(model.eval(), reader, names)
    if model.config.n_labels == 1:
        return PairScorer(model.eval(), reader, activation=read_activation(origin, folder))
    is_multi = origin.get("problem_type") == "multi_label_classification"
    return Classifier(model.eval(), reader, labels=names, multi_label=is_multi)


def _tagger(model: EncoderModel, reader: Reader, tags: list[str]) -> PretrainedTagger | Tagger:
    """Return a `Tagger` if the classes are the BIOES tags of the task `tagging` in its order, which `convert` wrote."""
    labels = list(dict.fromkeys(tag[2:] for tag in tags[1:]))
    if labels and tags == TagPaths(labels).tags:
        return Tagger(model, reader, labels=labels)
    return PretrainedTagger(model, reader, tags=tags)


def class_names(origin: Mapping[str, Any], n_labels: int) -> list[str]:
    """Return the names of the classes in HF's `id2label`, in order; `LABEL_0` and so on if it names another number."""
    named = origin.get("id2label")
    if not isinstance(named, Mapping) or len(named) != n_labels:
        return [f"LABEL_{index}" for index in range(n_labels)]
    found = {str(key): value for key, value in named.items()}
    for index in range(n_labels):
        if not isinstance(found.get(str(index)), str):
            raise ValueError(f"config.json has id2label={shown(named)}: expected a name for each class from 0 on")
    return [found[str(index)] for index in range(n_labels)]
