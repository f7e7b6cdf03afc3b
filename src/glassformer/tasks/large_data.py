"""Train on tokenized data in shards: that of `--prepared`, or large files, which are tokenized first. No torch."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.tasks.configs.divided_data import DividedData
from glassformer.tasks.tokenized_corpus import TokenizedCorpus
from glassformer.text import TokenizerConfig

if TYPE_CHECKING:
    from glassformer.training.run_folder import RunFolder

AnyTask = Any
"""A `glassformer.tasks.task.Task`. That module imports this one, so it cannot be named here."""
NAME = "corpus"
"""Name of the tokenized data in the run folder."""


def tokenize_large(task: AnyTask, run: "RunFolder") -> TokenizedCorpus | None:
    """Return the training data in shards, and set `task.tokenized`; None if it is small and read as usual.

    Large files are tokenized into the run folder by all cores. Data for a trained model (`--from`) is read as usual.
    """
    data = task.config.data
    if not isinstance(data, DividedData):
        return None
    if data.prepared is not None:
        task.tokenized = TokenizedCorpus(data.prepared)
    elif data.is_large() and task.config.base_model is None:
        folder = run.tokens / NAME
        task.tokenized = _stored(folder) if run.has_tokens(NAME) else None
        if task.tokenized is None:
            from glassformer.tasks.prepare_corpus import prepare_corpus

            task.tokenized = prepare_corpus(task.name, task.config, folder)
    elif data.mix:
        raise ValueError(
            f"--mix {data.mix} with {task.config.base_flag}: expected a model that is trained from scratch"
        )
    return task.tokenized


def _stored(folder: Path) -> TokenizedCorpus | None:
    """Return the data that is stored in a run folder; None if shards are missing or damaged, and are made anew."""
    try:
        return TokenizedCorpus(folder)
    except CorruptFolderError:
        return None


def use_prepared(task: AnyTask) -> None:
    """Set the options of a task with which its `--prepared` data was made, such as the size of the vocabulary.

    Raises ValueError if the data is for another task, or if another value was given for one of these options.
    """
    config = task.config
    if not isinstance(config.data, DividedData) or config.data.prepared is None:
        return
    corpus = TokenizedCorpus(config.data.prepared)
    if corpus.task != task.name:
        raise ValueError(f"--prepared {corpus.folder} is for {corpus.task}: expected data for {task.name}")
    if config.base_model is not None:
        raise ValueError(
            f"--prepared {corpus.folder} with {config.base_flag} {config.base_model}: expected none, prepared data has "
            "a tokenizer of its own"
        )
    corpus.weights(config.data.mix)
    wanted = {name: corpus.options[name] for name in corpus.options if name.startswith(("tokenizer.", "model."))}
    if config.data.TOKENS == "stream":
        del wanted["model.max_len"]  # it follows from --context
    if task.given is None:
        found = {f"{part}.{name}": value for part in ("tokenizer", "model") for name, value in _values(config, part)}
    else:
        found = dict(task.given)
        task.given = {**task.given, **{name: value for name, value in wanted.items() if value is not None}}
    for name, value in wanted.items():
        if name in found and found[name] != value and not _is_longer(name, found[name], value):
            raise ValueError(
                f"--{name.partition('.')[2].replace('_', '-')} {found[name]}: expected {value}, with which "
                f"{corpus.folder} was prepared"
            )
    model = {name.partition(".")[2]: value for name, value in wanted.items() if name.startswith("model.")}
    if "model.max_len" in found:
        model["max_len"] = found["model.max_len"]
        if task.given is not None:
            task.given["model.max_len"] = found["model.max_len"]
    tokenizer = {name.partition(".")[2]: value for name, value in wanted.items() if name.startswith("tokenizer.")}
    task.config = replace(
        config, model=replace(config.model, **model), tokenizer=replace(TokenizerConfig(), **tokenizer)
    )


def _values(config: Any, part: str) -> Any:
    return asdict(getattr(config, part)).items()


def _is_longer(name: str, found: Any, value: Any) -> bool:
    """Whether the option is a maximum length that is larger than that of the data, which is allowed."""
    return name == "model.max_len" and (found is None or (value is not None and found >= value))
