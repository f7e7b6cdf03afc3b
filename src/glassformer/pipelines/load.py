"""Load a model folder or file, trained here or pretrained, as a pipeline."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from glassformer.base.checks import check_positive
from glassformer.checkpoint import load_model
from glassformer.checkpoint.download_cache import find_model
from glassformer.checkpoint.external_formats import is_external, read_external, read_origin
from glassformer.checkpoint.external_model import ExternalModel
from glassformer.checkpoint.hf import family_by_type
from glassformer.checkpoint.hf.generation_settings import effective_settings
from glassformer.checkpoint.hf.values import read_int
from glassformer.checkpoint.load_errors import naming_errors
from glassformer.checkpoint.summary import stored_format
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.hf_generation import read_generation
from glassformer.pipelines.pair_scorer import PairScorer
from glassformer.pipelines.pipeline import GPU_BATCH_TOKENS
from glassformer.pipelines.pipeline_registry import TASK, pipeline_named, read_about
from glassformer.pipelines.pretrained_encoder import encoder_config, read_encoder_pipeline
from glassformer.pipelines.text_to_text import TextToText
from glassformer.pipelines.trained_pipeline import ModelLoader, TrainedPipeline
from glassformer.runtime.choose_runner import CompileChoice, check_compile, compile_steps
from glassformer.runtime.prepare_model import DtypeName, Quantization, choose_preparation
from glassformer.text.language_codes import read_layout
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

if TYPE_CHECKING:
    from glassformer.pipelines.split_model import ModelSplitter

Loaded = TrainedPipeline[Any] | Generator | Embedder | PairScorer | TextToText


def load(
    path: Path | str,
    *,
    device: torch.device | str = "auto",
    dtype: torch.dtype | DtypeName = "auto",
    quantize: Quantization | None = "none",
    compile: CompileChoice = "auto",
    batch_tokens: int | None = None,
    truncate: bool = False,
    allow_pickle: bool = False,
    parallel: str = "",
) -> Loaded:
    """Load a model as a pipeline that is ready to use.

    A model trained with Glassformer gives the pipeline of its task, such as a `Translator` or a `Classifier`. For
    Hugging Face folders, GGUF files and llama2.c files, a decoder gives a `Generator`, an encoder-decoder a
    `TextToText`, and an encoder an `Embedder`, unless it was saved with a head for classes (`Classifier`, or
    `PairScorer` for a single score), classes of tokens (`PretrainedTagger`) or spans (`Extractor`). `allow_pickle`
    (which also reads pytorch_model.bin) applies only to these. Nothing is downloaded, and no code in the files is run.

    Weights are read one tensor at a time, and each layer is quantized as soon as it has been read. So loading needs
    little more memory than the larger of the file and the loaded model.

    Args:
        path: A model folder, a GGUF or llama2.c file, or a model's name on the Hugging Face hub (`org/name`) if
            their download cache holds it.
        device: Where to compute, such as "cpu" or "cuda"; "auto" is a GPU if there is one.
        dtype: "float32", "bfloat16", "float16" or a torch dtype. "auto" is float32, but on a GPU it is bfloat16 or
            float16 if the file stores these. The quantized weights of a GGUF file stay as they are stored with "auto"
            on a CPU, and are expanded otherwise.
        quantize: "int8" computes with 8-bit weights on the CPU: several times as fast, with nearly the same results.
            "int4" computes with 4-bit weights: half the memory of int8, and less exact. None is "none".
        compile: "on" compiles the decoding steps of a model that generates text. That takes half a minute or more for
            each batch shape, and pays off if many texts follow. "auto" does not compile.
        batch_tokens: The most tokens of a batch, padding included; None is 16384 on a GPU, and on a CPU 4096 where
            texts are written and 8192 where they are only read. More are faster on large machines and take more memory.
        truncate: Cut inputs that are longer than the model's limit, and count them in the pipeline's `n_truncated`. By
            default a model that writes text raises a ValueError, and an encoder cuts them and logs a warning.
        allow_pickle: Also read weights from pytorch_model.bin, with a reader that accepts only tensors.
        parallel: "tensor=N" divides the layers among the N processes that torchrun started; all of them make the same
            calls. Empty is one process.

    >>> import glassformer as gf
    >>> _ = gf.train("classification", data="reviews.tsv", out="my-classifier", minutes=5)
    >>> gf.load("my-classifier").run(["it is good"])
    ['...']
    """
    path, quantize = find_model(path), quantize or "none"
    if batch_tokens is not None:
        check_positive("batch_tokens", batch_tokens)
    prepared = choose_preparation(
        device=device, dtype=dtype, quantize=quantize, stored_format=lambda: stored_format(path, allow_pickle)
    )
    if parallel and (quantize != "none" or compile == "on"):
        refused = f"quantize={quantize!r}" if quantize != "none" else "compile='on'"
        raise ValueError(f"{refused} with parallel={parallel!r}: expected none, a divided model makes plain steps")
    n_processes = _join(parallel, prepared.device) if parallel else 1
    splitter = _splitter(n_processes, prepared.device) if n_processes > 1 else None
    read_model = partial(
        load_model,
        dtype=prepared.dtype,
        when_filled=splitter.take if splitter else None if parallel else prepared.prepare_module,
        keep_quantized=prepared.keeps_quantized and not parallel,
    )
    with naming_errors(path):
        pipeline: Any = _load(path, read_model, allow_pickle)
    if splitter is not None:
        splitter.finish(pipeline.model)
    pipeline.model = prepared.finish(pipeline.model)
    if check_compile(compile) == "on":
        if not isinstance(pipeline.model, DecoderModel | EncoderDecoderModel):
            raise ValueError(f"compile='on': {path} holds an encoder, which makes no decoding steps: expected 'auto'")
        compile_steps(pipeline.model)
    on_gpu = GPU_BATCH_TOKENS if prepared.device.type == "cuda" else None
    pipeline.batch_tokens, pipeline.truncate = batch_tokens or on_gpu, truncate
    loaded: Loaded = pipeline
    return loaded


def _join(parallel: str, device: torch.device) -> int:
    """Join the processes that share the model, and return their number. Only this needs code of training."""
    from glassformer.pipelines.split_model import join_for_inference

    return join_for_inference(parallel, device)


def _splitter(n_processes: int, device: torch.device) -> "ModelSplitter":
    from glassformer.pipelines.split_model import ModelSplitter

    return ModelSplitter(n_processes, device)


def _tokenizer_in_file(path: Path, opened: ExternalModel) -> PretrainedTokenizer:
    if opened.tokenizer_json is None:
        raise ValueError(f"{path} holds no tokenizer: expected tokenizer.bin beside it")
    return PretrainedTokenizer.from_json(opened.tokenizer_json, opened.tokenizer_config, opened.config, where=str(path))


def _load(path: Path, read_model: ModelLoader, allow_pickle: bool) -> Loaded:
    """Read a model with its tokenizer, and return the pipeline of its task or, if it is pretrained, of its kind."""
    external = read_external(path, allow_pickle=allow_pickle) if is_external(path) else None
    origin = external.config if external is not None else read_origin(path)
    if origin is None or (external is None and (path / TASK).is_file()):
        found: Loaded = pipeline_named(read_about(path)["task"]).from_folder(path, read_model)
        return found
    is_encoder = family_by_type(origin.get("model_type")).kind == "encoder"
    # A file's tokenizer comes first: reading it takes memory for a moment, which the weights can then reuse.
    tokenizer = _tokenizer_in_file(path, external) if external is not None and path.is_file() else None
    base = path if external is None or external.base is None else external.base
    model = read_model(
        path,
        allow_pickle=allow_pickle,
        adapt=(lambda config: encoder_config(base, config)) if is_encoder else None,
        external=external,
    )
    path = path if (path / "tokenizer.json").is_file() else base
    tokenizer = tokenizer or PretrainedTokenizer.from_folder(path)
    if isinstance(model, EncoderModel):
        return read_encoder_pipeline(model, tokenizer, base, origin, allow_pickle=allow_pickle)
    if model.config.head != "language_model":
        raise ValueError(
            f"{path} holds a model with head={model.config.head!r}, which generates no text: expected one that was "
            "saved with its language-model head (architectures in config.json)"
        )
    if isinstance(model, DecoderModel):
        return Generator(model, tokenizer)
    assert isinstance(model, EncoderDecoderModel)
    return _text_to_text(path, model, tokenizer, origin, base)


def _text_to_text(
    path: Path, model: EncoderDecoderModel, tokenizer: PretrainedTokenizer, origin: Mapping[str, Any], base: Path
) -> TextToText:
    """Return the pipeline of a pretrained encoder-decoder.

    `origin` is HF's config, and `base` the folder of the model, or of the base model of an adapter.
    """
    settings = {**origin, **effective_settings(origin, base)}
    begin, languages = read_int(settings, "decoder_start_token_id", default=-1), read_layout(tokenizer)
    if languages is not None and not languages.is_before and settings.get("model_type") == "mbart":
        begin = begin if begin in languages.codes.values() else -1  # mBART begins a text with its language
    if not (0 <= begin < model.config.vocab_size or (begin == -1 and languages is not None)):
        raise ValueError(
            f"{path} does not say which token its texts begin with: expected decoder_start_token_id in "
            f"config.json, an id below {model.config.vocab_size}"
        )
    target = PretrainedTokenizer.from_folder(path, target=True)
    generation, tasks = read_generation(origin, base, target, model.config.vocab_size)
    return TextToText(model, tokenizer, target, begin=begin, generation=generation, languages=languages, tasks=tasks)
