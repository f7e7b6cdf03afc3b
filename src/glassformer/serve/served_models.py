"""The models of a server: their names, loading on demand, and the memory that they may take."""

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.base.checks import shown
from glassformer.base.names import no_such_model, suggestion
from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.external_formats import is_external, read_external
from glassformer.checkpoint.layout import READ_FILES
from glassformer.checkpoint.load_errors import naming_errors
from glassformer.checkpoint.safe_files import SealedFolder
from glassformer.decoding.engine import Engine
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.encoder_pipeline import EncoderPipeline
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.seq2seq_pipeline import Seq2SeqPipeline
from glassformer.pipelines.text_to_text import TextToText
from glassformer.serve.api_errors import ApiError
from glassformer.serve.batch_defaults import cache_tokens_for, with_rows
from glassformer.serve.compute_thread import ComputeThread, Lane
from glassformer.serve.remote_engine import RemoteEngine, start_engine
from glassformer.serve.server_options import BatchOptions, RequestLimits
from glassformer.serve.token_bytes import TokenBytes
from glassformer.serve.warm_up import warm_up

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[\w][\w.:/-]{0,99}")
GIGABYTE = 10**9
ENGINE_SIZES = "max_rows", "max_tokens", "max_waiting"
"""The arguments of an engine that are sent to its separate process."""
MAX_COPIED_BYTES = 4 * GIGABYTE
"""With `--engine-process auto`, the largest weights that are loaded a second time, in the process of an engine."""


def parse_models(words: tuple[str, ...]) -> dict[str, Path]:
    """Return the path of each model by its name, from words like `MODEL` or `NAME=MODEL`.

    A model without a name gets that of its folder, or of its file without the ending.
    """
    found: dict[str, Path] = {}
    for word in words:
        name, sign, rest = word.partition("=")
        path = Path(word if not sign or Path(word).exists() else rest)
        if path == Path(word):
            whole = path.resolve()
            name = whole.stem if whole.is_file() else whole.name
            name = re.sub(r"[^\w.:/-]", "-", name).lstrip(".:/-") or "model"
        if not _NAME.fullmatch(name):
            raise ValueError(f"{word}: the name {name!r} is not allowed: expected letters, digits and . _ : / -")
        if name in found:
            raise ValueError(f"{word}: two models are called {name!r}: give one another name, as in other={path}")
        found[name] = path
    return found


def check_models(models: Mapping[str, Path], keep_loaded: float) -> None:
    """Raise an error with the path of the first model that cannot be served, before any of them is loaded.

    The error is a ValueError or OSError. It says that files are missing, that their headers are not those of a model,
    or that a model is larger than --keep-loaded, in GB, where 0 is no limit.
    """
    for path in models.values():
        found = find_model(path)
        if not found.exists():
            raise FileNotFoundError(no_such_model(path))
        with naming_errors(path):
            if is_external(found):
                read_external(found)
            else:
                SealedFolder(found).check_listed(READ_FILES)
        size = file_size(path) / GIGABYTE
        if keep_loaded and size > keep_loaded:
            raise ValueError(f"{path} has {size:.2f} GB: expected at most --keep-loaded {keep_loaded:g}; raise it")


def file_size(path: Path) -> int:
    """Return the bytes of a model's files, by which --keep-loaded counts."""
    path = find_model(path)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


@dataclass(eq=False)
class ServedModel:
    """A model of the server. `pipeline` and `lane` are None while it is not loaded."""

    name: str
    path: Path
    size: int
    pipeline: Any = None
    lane: Lane | None = None
    """Its engine, if it generates text."""
    token_bytes: TokenBytes | None = None
    """The bytes of its tokens, if it continues texts."""
    grammar_tokenizer: Any = None
    """The tokenizer of its grammars, made when the first of them is asked for (`structured_output.py`)."""
    n_users: int = 0
    last_use: float = 0.0
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_decoder(self) -> bool:
        """Whether the model continues texts, so that it answers completions."""
        return isinstance(self.pipeline, Generator)

    @property
    def can_embed(self) -> bool:
        """Whether the model turns texts into vectors."""
        return isinstance(self.pipeline, Embedder | EncoderPipeline)

    @property
    def kind(self) -> str:
        """The task of the model, or the kind of a pretrained model, such as "decoder"."""
        return str(getattr(self.pipeline, "task", None) or self.pipeline.model.kind)


class ModelShelf:
    """The models of a server by name. `lend` gives one to a request, and loads it if necessary.

    Args:
        load: Returns the pipeline of a path.
        make_engine: Makes the engine of a model that generates text.
        load_options: The options of `load`, for engines in separate processes, which load the model again. Without
            them there are none.
    """

    def __init__(
        self,
        models: Mapping[str, Path],
        load: Callable[[Path], Any],
        compute: ComputeThread,
        batch: BatchOptions,
        limits: RequestLimits,
        make_engine: Callable[..., Engine] = Engine,
        load_options: Mapping[str, Any] | None = None,
    ):
        self.models = {name: ServedModel(name, path, file_size(path)) for name, path in models.items()}
        self._load, self._compute, self._batch, self._limits = load, compute, batch, limits
        self._make_engine, self._load_options = make_engine, load_options
        self._budget = batch.keep_loaded * GIGABYTE
        self._changed = asyncio.Condition()
        self._is_loading = False
        self._unloaded: list[Lane] = []
        """The engines of unloaded models, which end before the next model is loaded."""

    def find(self, name: str) -> ServedModel:
        """Return the model with this name, loaded or not. Raises an ApiError with status 404 if there is none."""
        if name not in self.models:
            hint = suggestion(name, self.models)
            raise ApiError(
                404, f"model={shown(name)}: there is no such model; {hint}", param="model", code="model_not_found"
            )
        return self.models[name]

    def is_loaded(self, name: str) -> bool:
        """Return whether there is a model with this name and it is loaded."""
        model = self.models.get(name)
        return model is not None and model.pipeline is not None

    @contextlib.asynccontextmanager
    async def lend(self, name: str) -> AsyncIterator[ServedModel]:
        """Return a context manager in which a model is loaded and stays so. It waits if there is no memory for it."""
        model = self.find(name)
        async with self._changed:
            model.n_users += 1
        try:
            await self._make_ready(model)
            yield model
        finally:
            model.n_users -= 1
            model.last_use = time.monotonic()
            async with self._changed:
                self._changed.notify_all()

    async def _make_ready(self, model: ServedModel) -> None:
        async with self._changed:
            while model.pipeline is None:
                if not self._is_loading and self._make_room(model):
                    break
                await self._changed.wait()
            if model.pipeline is not None:
                return
            self._is_loading = True
            self._loading = asyncio.create_task(self._load_model(model))
        # Loading continues if the client leaves. Otherwise the next client would load the model a second time.
        await asyncio.shield(self._loading)

    async def _load_model(self, model: ServedModel) -> None:
        try:
            await asyncio.to_thread(self._end_unloaded)  # the process of an engine may take a second to end
            pipeline = await asyncio.to_thread(self._load, model.path)
            await asyncio.to_thread(self.put, model, pipeline)
        finally:
            async with self._changed:
                self._is_loading = False
                self._changed.notify_all()

    def put(self, model: ServedModel, pipeline: Any) -> None:
        """Make a loaded pipeline the pipeline of a model, and start its engine if it generates text."""
        pipeline.truncate = not hasattr(pipeline, "generation")  # an encoder cuts long texts, as `run` does
        options = engine_options(pipeline, self._batch, self._limits)
        if options is not None:
            model.lane = self._compute.add_lane(lambda: self._new_engine(model, pipeline, options))
        if isinstance(pipeline, Generator):
            model.token_bytes = TokenBytes(pipeline.tokenizer)
        model.pipeline = pipeline
        _LOG.info("loaded %s from %s", model.name, model.path)

    def _new_engine(self, model: ServedModel, pipeline: Any, options: dict[str, Any]) -> Engine:
        """Return the engine of a model, warmed up, in a separate process if `wants_process` says so."""
        if self._load_options is not None and wants_process(pipeline, self._batch):
            sizes = {name: options[name] for name in ENGINE_SIZES}
            return RemoteEngine(
                pipeline.model,
                link=start_engine(model.path, self._load_options, sizes),
                on_report=self._compute.wake,
                note_step=self._compute.metrics.note_step,
                **options,
            )
        engine = self._make_engine(pipeline.model, **options)
        if type(engine) is Engine:  # not if other processes must make the same steps
            warm_up(engine, _LOG.info)
        return engine

    def _make_room(self, wanted: ServedModel) -> bool:
        """Unload models that are not in use until `wanted` fits. Return whether it fits."""
        loaded = [model for model in self.models.values() if model.pipeline is not None]
        if not self._budget:
            return True
        for model in sorted(loaded, key=lambda model: model.last_use):
            if wanted.size + sum(one.size for one in loaded if one.pipeline is not None) <= self._budget:
                break
            if not model.n_users:
                self._unload(model)
        return wanted.size + sum(one.size for one in loaded if one.pipeline is not None) <= self._budget

    def _end_unloaded(self) -> None:
        while self._unloaded:
            self._compute.remove_lane(self._unloaded.pop())

    def _unload(self, model: ServedModel) -> None:
        if model.lane is not None:
            self._unloaded.append(model.lane)
        model.pipeline = model.lane = model.token_bytes = model.grammar_tokenizer = None
        _LOG.info("unloaded %s", model.name)


def wants_process(pipeline: Any, batch: BatchOptions) -> bool:
    """Return whether the engine of a pipeline runs in a separate process.

    By default it does for a small decoder on a GPU. Its weights are loaded twice. The steps of a larger model take so
    long that the time Python takes between them does not matter.
    """
    if batch.engine_process == "off" or not isinstance(pipeline, Generator):
        return False
    if batch.engine_process == "on":
        return True
    parameters = list(pipeline.model.parameters())
    size = sum(parameter.nbytes for parameter in parameters)
    return os.name == "posix" and parameters[0].is_cuda and size <= MAX_COPIED_BYTES


def engine_options(pipeline: Any, batch: BatchOptions, limits: RequestLimits) -> dict[str, Any] | None:
    """Return the arguments of the engine of a pipeline's model; None if it generates no text."""
    marks = engine_marks(pipeline)
    if marks is None:
        return None
    batch = with_rows(batch, next(pipeline.model.parameters()).device)
    size = cache_tokens_for(batch, pipeline.model)
    return {"max_rows": batch.max_rows, "max_tokens": size, "max_waiting": limits.max_queue, **marks}


def engine_marks(pipeline: Any) -> dict[str, Any] | None:
    """Return the tokens that begin and end a pipeline's texts, and their tokenizer; None if it generates no text."""
    if isinstance(pipeline, Generator):
        return {"end": pipeline.end, "tokenizer": pipeline.tokenizer}
    if isinstance(pipeline, Seq2SeqPipeline):
        return {"begin": pipeline.begin, "end": pipeline.end, "tokenizer": pipeline.target_tokenizer}
    if isinstance(pipeline, TextToText):
        end = pipeline.target_tokenizer.end
        return {"begin": pipeline.begin, "end": -1 if end is None else end, "tokenizer": pipeline.target_tokenizer}
    return None
