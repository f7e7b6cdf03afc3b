"""Train the model of a task from start to end: choose defaults, prepare the data, train, score and save the model."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glassformer.checkpoint import OutputExistsError
from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.external_formats import ORIGIN
from glassformer.checkpoint.hf.folder import is_hf_folder
from glassformer.checkpoint.output_folder import check_output
from glassformer.checkpoint.unread_weights import reading_later
from glassformer.metrics.scores import Scores
from glassformer.models import EncoderModel
from glassformer.models.transformer import Model
from glassformer.progress import Step, reporting, say
from glassformer.runtime.devices import choose_device
from glassformer.tasks.card import CardFacts, code, size_in_words, write_card
from glassformer.tasks.choose import choose, in_words
from glassformer.tasks.configs.shared import TaskConfig
from glassformer.tasks.configs.task_options import make_config
from glassformer.tasks.large_data import use_prepared
from glassformer.tasks.prepared import Prepared, SplitName
from glassformer.tasks.recipes import recipe_text
from glassformer.tasks.training_run import train_run
from glassformer.training.adapter_folder import AdapterFiles, adapter_family, adapter_files, write_adapter
from glassformer.training.callbacks import Callbacks, report_model_saved
from glassformer.training.fingerprints import paths_of
from glassformer.training.lora import add_adapters, merge_adapters, n_trained, narrowed
from glassformer.training.parallel import Parallel, read_layout
from glassformer.training.precision import is_bf16_on_gpu
from glassformer.training.processes import Processes, joined
from glassformer.training.random_numbers import using_random_numbers
from glassformer.training.run_folder import RunFolder, flatten
from glassformer.training.shared_run import FollowedRun, kept_texts, open_shared_run
from glassformer.training.state import TrainState
from glassformer.training.training_speed import using_threads

AnyTask = Any
"""A `glassformer.tasks.task.Task`. That module imports this one, so it cannot be named here."""


def train_task(
    task: AnyTask,
    out: Path,
    *,
    callbacks: Callbacks,
    restart: bool = False,
    accept_changes: bool = False,
    overwrite: bool = False,
    began: float | None = None,
) -> Scores:
    """Train the model of a task, save it in the folder `out`, and return its scores: the body of `Task.train`.

    `Task.train` describes the arguments.
    """
    began = time.perf_counter() if began is None else began
    if restart and accept_changes:
        raise ValueError("--restart discards the run and --continue keeps it: expected one of them")
    folder = out.resolve()
    _check_output_is_no_input(task.config, folder)
    with (
        using_random_numbers(),
        joined(task.config.train.device, is_needed=bool(task.config.train.parallel)) as processes,
        reporting(quiet=not processes.is_leader),
        open_shared_run(folder, processes, restart=restart) as run,
        using_threads(0),
    ):
        with processes.together():
            read_layout(task.config.train.parallel, processes.size)
            if processes.is_leader:
                check_output(folder, overwrite=overwrite, owner=run.id)
        ready, parallel, chosen = processes.after_leader(
            lambda: _prepare(task, run, processes, accept_changes=accept_changes, began=began),
            share=lambda: kept_texts(run),
            take=lambda texts: run.kept.update(texts) if isinstance(run, FollowedRun) else None,
        )
        processes.check_equal("other data", run.inputs, "Every process needs the same files")
        settings = flatten(run.config, run.inputs)  # the same files may have other paths elsewhere
        processes.check_equal("other options", settings, "Start every process with the same command")
        state, adapter = _train_model(task, ready, run, callbacks, chosen, parallel, began)
        scores: Scores | None = None
        with processes.together():
            with parallel.sharing():
                scores = _final_scores(task, ready)
            if processes.is_leader:
                _save_model(task, ready, state, adapter, folder, run, scores, overwrite=overwrite)
        found = processes.broadcast(scores)
        assert found is not None
        if processes.is_leader:
            report_model_saved(callbacks, state.update, folder, found.values)
        return found


def _prepare(
    task: AnyTask, run: RunFolder, processes: Processes, *, accept_changes: bool, began: float
) -> tuple[Prepared[Any, Any], Parallel, list[str]]:
    """Choose the options that were not given, read the data and build the model.

    Return the prepared task, how the processes share it, and a note about the chosen options.
    """
    choose_device(task.config.train.device)  # an unknown device is refused before any data is read
    use_prepared(task)
    chosen = _choose_defaults(task, run, began)
    train = task.config.train
    _check_options(task)
    parallel = Parallel(train, processes)
    with Step("reading the data"):
        inputs = task.inputs()
    run.bind(task.name, task.config, inputs, accept_changes=accept_changes)
    torch.manual_seed(train.seed)
    torch.set_num_threads(train.threads or torch.get_num_threads())
    # Growing a model needs its weights.
    with reading_later(parallel.layout.is_sharded and task.config.grow_from is None):
        return task.prepare(run), parallel, chosen


def _train_model(
    task: AnyTask,
    ready: Prepared[Any, Any],
    run: RunFolder,
    callbacks: Callbacks,
    chosen: list[str],
    parallel: Parallel,
    began: float,
) -> tuple[TrainState, AdapterFiles | None]:
    """Train the model in place, and return the final counters, and the adapter if it alone is to be saved."""
    train = task.config.train
    ready.pipeline.truncate = True  # validation reads inputs that are too long as training does: it cuts them
    model, notes = ready.pipeline.model, [*chosen, *ready.notes]
    model.set_gradient_checkpointing(train.gradient_checkpointing)
    if train.lora_rank:
        adapted = add_adapters(model, train, ready.new_parameters)
        if train.lora_save == "adapter":
            check_adapter_alone(model, adapted)
            adapter_family(model, _base_type(ready.pipeline))  # raises if no adapter folder can express this model
        share = n_trained(model) / model.n_parameters()
        notes.append(f"{len(adapted)} matrices have adapters of rank {train.lora_rank}: {share:.1%} of all learns")
    usual: TaskConfig = task.Config()  # every task has a default for each part
    is_narrow = bool(train.lora_rank) and is_bf16_on_gpu(train, model)
    with narrowed(model, torch.bfloat16) if is_narrow else nullcontext():
        state = train_run(
            run,
            model,
            train,
            batches=ready.batches,
            loss=lambda module: partial(task.loss, module),
            evaluate=ready.evaluate,
            flops=partial(task.flops, model),
            notes=notes,
            score=ready.pipeline.score,
            test=ready.test,
            began=began,
            warmup_is_given=train.warmup != usual.train.warmup if task.given is None else "train.warmup" in task.given,
            validation=ready.validation,
            callbacks=callbacks,
            parallel=parallel,
        )
    adapter = collect_adapter(model, ready.pipeline, task.config) if train.lora_save == "adapter" else None
    if train.lora_rank:
        merge_adapters(model)
    return state, adapter


def _final_scores(task: AnyTask, ready: Prepared[Any, Any]) -> Scores:
    """Return the final scores of the trained model."""
    ready.finish()
    split: SplitName = "test" if ready.is_test else "validation"
    about = task.scored_on(split, len(ready.test), ready.pipeline.scoring_method())
    ready.pipeline.n_truncated = 0
    with Step("final scores"):
        scores: Scores = replace(ready.pipeline.score(ready.test), about=about)
    if ready.pipeline.n_truncated:
        say(f"final scores: {ready.pipeline.truncation_note()}")
    return scores


def _save_model(
    task: AnyTask,
    ready: Prepared[Any, Any],
    state: TrainState,
    adapter: AdapterFiles | None,
    out: Path,
    run: RunFolder,
    scores: Scores,
    *,
    overwrite: bool,
) -> None:
    """Write the folder of the trained model, or that of the adapter."""
    card = make_card(task, out, ready, state, scores)
    save = partial(ready.pipeline.save, card=card, data=task.config.data, owner=run.id)
    if adapter is not None:
        save = partial(write_adapter, adapter=adapter, card=card, owner=run.id)
    try:
        save(out, overwrite=overwrite)
    except OutputExistsError as error:  # files were put there while the model trained
        save(run.path / "model", overwrite=True)
        raise OutputExistsError(f"{error}. The trained model is in {run.path / 'model'}") from error


def check_adapter_alone(model: Model, adapted: Sequence[str]) -> None:
    """Raise ValueError if the model has a new head, which the adapter does not hold, or if experts have adapters.

    HF holds all experts of a layer in one tensor, for which PEFT's format has no names.
    """
    if expert := next((name for name in adapted if ".ffn.experts." in name), None):
        raise ValueError(
            f"lora_save='adapter' with an adapter on {expert}: expected 'merged', or --lora-layers q_proj v_proj, "
            "because PEFT has no names for experts"
        )
    if model.config.head != "language_model" or isinstance(model, EncoderModel):
        raise ValueError(
            f"lora_save='adapter' for a model with head={model.config.head!r}: expected 'merged', because the adapter "
            "does not hold the head"
        )


def collect_adapter(model: Model, pipeline: Any, config: TaskConfig) -> AdapterFiles:
    """Return the files of the trained adapter in PEFT's format."""
    assert config.start_from is not None
    return adapter_files(model, config.start_from.resolve(), _base_type(pipeline))


def _base_type(pipeline: Any) -> str | None:
    """Return HF's model type of the pretrained model that a pipeline began with; None if Glassformer trained it."""
    origin = json.loads(pipeline.base_files[ORIGIN]) if pipeline.base_files else {}
    found: str | None = origin.get("model_type")
    return found


def make_card(task: AnyTask, out: Path, ready: Prepared[Any, Any], state: TrainState, scores: Scores) -> str:
    """Return the model card of a trained task in Markdown: data, size, scores, use and recipe."""
    model: Model = ready.pipeline.model
    checkpoint, grown = task.config.start_from, task.config.grow_from
    facts = [
        ("task", code(task.name)),
        *task.data_facts(),
        (f"training {task.unit}", f"{ready.n_train:,}"),
        ("model", size_in_words(model.config, model.kind, model.n_parameters())),
        *([] if checkpoint is None else [("initialized from", code(checkpoint))]),
        *([] if grown is None else [("grown from", code(grown))]),
    ]
    return write_card(
        CardFacts(
            title=task.title,
            task=task.name,
            facts=facts,
            state=state,
            scores=scores,
            scored_on=scores.about,
            validation=ready.validation,
            is_test=ready.is_test,
            folder=out.name,
            sample_line=task.sample_line,
            recipe=recipe_text(task.config),
        )
    )


def _check_output_is_no_input(config: Any, out: Path) -> None:
    """Raise ValueError if `out` is inside a data folder, or is the model folder of `--from` or `--grow-from`."""
    for name, path in paths_of(config.data).items():
        # Of --folder only the files of a corpus are read, which have fixed names.
        if name != "folder" and path.is_dir() and out.is_relative_to(path.resolve()):
            raise ValueError(
                f"--out {out} is inside the data folder {path}: the next run would read the model as data. "
                "Choose a folder outside it"
            )
    for flag, model in (("--from", config.start_from), ("--grow-from", config.grow_from)):
        if model is not None and out == model.resolve():
            raise ValueError(f"--out {out} is the model that {flag} names: expected another folder")


def _check_options(task: AnyTask) -> None:
    """Raise ValueError if an option is set that has no effect on this task, or LoRA without a model to adapt."""
    train = task.config.train
    for name in task.unused():
        value = getattr(train, name, None) or getattr(task.config.tokenizer, name, None)
        if value:
            raise ValueError(f"{name}={value}: it has no effect on {task.name}, expected none")
    if task.config.start_from is not None and task.config.grow_from is not None:
        raise ValueError(
            f"--from {task.config.start_from} and --grow-from {task.config.grow_from}: expected one of them"
        )
    if train.lora_save == "adapter" and not train.lora_rank:
        raise ValueError("lora_save='adapter' without adapters: expected --lora-rank")
    if train.lora_rank and task.config.start_from is None:
        raise ValueError(f"lora_rank={train.lora_rank} without a model to adapt: expected --from MODEL")
    if train.lora_save == "adapter" and task.config.start_from is not None:
        base = find_model(task.config.start_from)
        if base.exists() and not (base.is_dir() and is_hf_folder(base)):  # with which alone an adapter is loaded
            raise ValueError(
                f"--lora-save adapter with --from {task.config.start_from}: expected a model in Hugging Face's format, "
                f"which glassformer convert {task.config.start_from} --to hf --out FOLDER makes, or --lora-save merged"
            )


def _choose_defaults(task: AnyTask, run: RunFolder, began: float) -> list[str]:
    """Choose the options that the user did not give, set `task.config`, and return a note about them.

    A resumed run keeps the options that it chose. If the config is complete, nothing changes and there is no note.
    """
    given: Mapping[str, Any] | None = task.given
    if given is None:
        return []

    def make() -> dict[str, Any]:
        with Step("measuring the data"):
            corpus = task.corpus()
        return choose(task.config, given, corpus, size=task.size, began=began)

    chosen = run.keep_json("defaults.json", make)
    task.config = make_config(task.Config, {**chosen, **given})
    return [in_words(chosen, given)]
