"""`glassformer info`: describe a model, or this machine. Imports torch only for `--runtime` and for the machine."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.cli.flag_parser import UsageError

if TYPE_CHECKING:
    from glassformer.checkpoint.summary import ModelSummary
    from glassformer.text import Tokenizer
    from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

WHOLE_NUMBERS = ("I64", "I32", "I16", "BOOL")
"""Number types of stored counters and masks. A tensor of such a type does not mean that the weights are quantized."""
MAX_SPECIAL = 12
"""The largest number of special tokens that are shown; --json lists all."""


def info(
    path: Path | None = None,
    *,
    json: bool = False,
    runtime: bool = False,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    quantize: Literal["none", "int8", "int4"] = "none",
    compile: Literal["auto", "on", "off"] = "auto",
    allow_pickle: bool = False,
) -> None:
    """Show what a model is: kind, number of parameters, task, languages, family, head, number format, memory,
    tokenizer, chat template and settings.

    The memory is that of the weights, in each number format that --dtype and --quantize can ask for.

    Only the headers of the weight files are read, but the checksums of a folder that Glassformer wrote are verified,
    which takes longer for a large model.

    Without PATH, show what Glassformer uses on this machine: versions, processors, kernels, and the cache folder. A
    report of an error should have these lines.

    Args:
        path: A model folder, a GGUF or llama2.c file, or org/name for a model in Hugging Face's download cache.
        json: Print one JSON object, with all settings.
        runtime: Also show how the model would compute on this machine, and why: device, numbers, kernels, steps, cost
            of the first use, memory, and an upper bound of the speed. The weights are not loaded. Without PATH, also
            measure this machine.
        device: With --runtime: the device that run would be asked for; auto is a GPU where there is one.
        dtype: With --runtime: the numbers that run would be asked for; auto is float32, or on a GPU the
            bfloat16 or float16 in which the file is stored.
        quantize: With --runtime: the quantization that run would be asked for.
        compile: With --runtime: whether run would be asked to compile the decoding steps.
        allow_pickle: Also read weights from pytorch_model.bin, with a reader that accepts only tensors.
    """
    asked = {"device": device, "dtype": dtype, "quantize": quantize, "compile": compile}
    for name, value in asked.items():
        if not runtime and value not in ("auto", "none"):
            raise UsageError(f"--{name} {value} has no effect without --runtime: add --runtime, or leave it out")
    if path is None:
        if allow_pickle or set(asked.values()) - {"auto", "none"}:
            flags = "--device, --dtype, --quantize, --compile and --allow-pickle"
            raise UsageError(f"PATH is missing: expected a model, because {flags} say how to read and compute one")
        _info_of_machine(as_json=json, measure=runtime)
        return
    found = describe(path, allow_pickle=allow_pickle)
    if runtime:
        found["runtime"] = _runtime(path, asked, allow_pickle=allow_pickle)
    if json:
        print(_as_json(found))
        return
    for line in _lines(found):
        print(line)


def _info_of_machine(*, as_json: bool, measure: bool) -> None:
    from glassformer.runtime.machine_report import report_machine

    found = report_machine(measure=measure)
    if as_json:
        print(_as_json(found))
        return
    for name, value in found.items():
        print(f"{name:<15} {value}")


def describe(path: Path | str, *, allow_pickle: bool = False) -> dict[str, Any]:
    """Return the description of a model, which `info` prints as text and `info --json` as a JSON object."""
    from glassformer.checkpoint.download_cache import find_model
    from glassformer.checkpoint.hf.extra_heads import modules_of, skipped_names
    from glassformer.checkpoint.summary import summarize
    from glassformer.models.costs import count_active_parameters, weight_bytes_by_format
    from glassformer.pipelines.pipeline_registry import DATA_SETTINGS, TASK, read_about
    from glassformer.tasks.configs.shared import TaskData
    from glassformer.tasks.task_registry import data_named

    path = find_model(path)
    model = summarize(path, allow_pickle=allow_pickle)
    about = read_about(path) if (path / TASK).is_file() else {}
    data: type[TaskData[Any]] = data_named(about["task"]) if about else TaskData
    no_settings = ("task", *DATA_SETTINGS, "tokenizer")
    tokenizers: dict[str, Tokenizer | PretrainedTokenizer] = {}
    problem = None
    try:
        tokenizers = _tokenizers(path, model, about)
    except (ValueError, OSError) as error:  # describe the rest all the same
        problem = str(error)
    template = next((one.chat_template for one in tokenizers.values() if one.chat_template is not None), None)
    return {
        "path": str(path),
        "kind": model.config.kind,
        "parameters": model.n_parameters,
        "active_parameters": count_active_parameters(model.config),
        "task": about.get("task"),
        "task_settings": {key: value for key, value in about.items() if key not in no_settings},
        "languages": data.stored_languages(about),
        "data": data.changed_settings(about),
        "family": model.family,
        "head": _head(model.config),
        "adapter_of": None if model.external is None or model.external.base is None else str(model.external.base),
        "model_tasks": _model_tasks(path, model),
        "skipped_heads": [] if model.external is None else modules_of(skipped_names(model.external, model.config)),
        "memory_bytes": weight_bytes_by_format(model.config),
        "numbers": dict(model.stored),
        "tokenizer_problem": problem,
        "tokenizers": {side: _about_tokenizer(one) for side, one in tokenizers.items()},
        "chat_template": template,
        "settings": _changed(model.config),
    }


def _model_tasks(path: Path, model: "ModelSummary") -> dict[str, str]:
    """Return the tasks that the files of an encoder-decoder have settings for, each with the prefix of its sources."""
    from glassformer.checkpoint.hf.generation_settings import read_tasks
    from glassformer.checkpoint.load_errors import naming_errors

    if model.external is None or model.config.kind != "encoder_decoder":
        return {}
    with naming_errors(path):
        return {name: one["prefix"] for name, one in read_tasks(model.external.config).items()}


def _runtime(path: Path, asked: Mapping[str, Any], *, allow_pickle: bool) -> dict[str, dict[str, str]]:
    """Return what would be decided for the model, and why, if `run` were given these options."""
    from glassformer.checkpoint.download_cache import find_model
    from glassformer.checkpoint.gguf_model import has_quantized_tensors
    from glassformer.checkpoint.summary import summarize
    from glassformer.runtime.runtime_report import report_runtime

    model = summarize(path, allow_pickle=allow_pickle)
    path = find_model(path)
    is_packed = model.external is not None and has_quantized_tensors(model.external)
    stored_bytes = path.stat().st_size if is_packed else 0
    found = report_runtime(model.config, **asked, stored_bytes=stored_bytes, stored_as=next(iter(model.stored), "F32"))
    return {what: {"decision": one.decision, "why": one.why} for what, one in found.items()}


def _tokenizers(
    path: Path, model: "ModelSummary", about: Mapping[str, Any]
) -> "dict[str, Tokenizer | PretrainedTokenizer]":
    """Return the tokenizers of a model: one under "text", or two under "source" and "target". A model may have none."""
    from glassformer.text import Tokenizer
    from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

    if model.external is not None and model.external.tokenizer_json is not None:
        external = model.external
        found = PretrainedTokenizer.from_json(
            model.external.tokenizer_json, external.tokenizer_config, external.config, where=str(path)
        )
        return {"text": found}
    if path.is_file():
        return {}
    if model.external is not None and model.external.base is not None and not (path / "tokenizer.json").is_file():
        path = model.external.base
    if model.family is not None or about.get("tokenizer") == "pretrained":
        source = PretrainedTokenizer.from_folder(path)
        if model.config.kind != "encoder_decoder" or (path / "tokenizer.json").is_file():
            return {"text": source}
        return {"source": source, "target": PretrainedTokenizer.from_folder(path, target=True)}
    names = {"text": "tokenizer.json", "source": "source_tokenizer.json", "target": "target_tokenizer.json"}
    return {side: Tokenizer.load(path / name) for side, name in names.items() if (path / name).is_file()}


def _about_tokenizer(tokenizer: "Tokenizer | PretrainedTokenizer") -> dict[str, Any]:
    return {
        "kind": tokenizer.kind,
        "size": tokenizer.vocab_size,
        "special_tokens": tokenizer.tokens(sorted(tokenizer.special_ids)),
    }


def _head(config: Any) -> str:
    """Describe the head of a model, such as "sequence_class, 3 classes, with a dense layer"."""
    n_labels, dense = config.n_labels, config.head_transform
    parts = [config.head, f"{n_labels:,} class{'es' * (n_labels != 1)}" if n_labels else ""]
    return ", ".join(filter(None, [*parts, "with a dense layer" if dense else "", "tied" * config.ties_output]))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:,.2f} MB"


def _changed(config: Any) -> dict[str, Any]:
    """Return the fields of a config whose values differ from their defaults."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {field.name: values[field.name] for field in fields(config) if values[field.name] != field.default}


def _as_json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2, ensure_ascii=False)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the description that `describe` returned as the lines of text that `info` prints."""
    active = found["active_parameters"]
    more = f", {active:,} of them for each token" if active != found["parameters"] else ""
    yield f"{found['path']}: {found['kind'].replace('_', '-')}, {found['parameters']:,} parameters{more}"
    if found["task"]:
        yield f"  task           {found['task']}"
    if found["languages"]:
        sides = (f"{side} {_language(known)}" for side, known in found["languages"].items())
        yield f"  languages      {', '.join(sides)}"
    for title, key in (("task settings", "task_settings"), ("data", "data")):
        if found[key]:
            yield f"  {title:<15}{', '.join(f'{name}={_short(value)}' for name, value in found[key].items())}"
    if found["family"]:
        yield f"  family         {found['family']}"
    if found["adapter_of"]:
        yield f"  adapter of     {found['adapter_of']}"
    yield f"  head           {found['head']}"
    if found["model_tasks"]:
        tasks = (f"{name} ({prefix!r})" if prefix else name for name, prefix in found["model_tasks"].items())
        yield f"  tasks          {', '.join(tasks)}"
    if found["skipped_heads"]:
        yield f"  skipped heads  {', '.join(found['skipped_heads'])}"
    yield f"  numbers        {_numbers(found['numbers'])}"
    sizes = (f"{name} {_megabytes(size)}" for name, size in found["memory_bytes"].items())
    yield f"  memory         {', '.join(sizes)}"
    for side, about in found["tokenizers"].items():
        title = "tokenizer" if side == "text" else f"{side} tokens"
        special = about["special_tokens"]
        more = f" and {len(special) - MAX_SPECIAL:,} more" if len(special) > MAX_SPECIAL else ""
        shown = " ".join(special[:MAX_SPECIAL]) or "none"
        yield f"  {title:<15}{about['kind']}, {about['size']:,} tokens, special: {shown}{more}"
    if not found["tokenizers"]:
        yield f"  tokenizer      {_short(found['tokenizer_problem'] or 'none', 200)}"
    template = found["chat_template"]
    yield f"  chat template  {'none' if template is None else _short(_first_line(template))}"
    if "runtime" in found:
        yield "  runtime"
        for what, one in found["runtime"].items():
            yield f"    {what:<9} {one['decision']} ({one['why']})"
    yield "  settings"
    for name, value in found["settings"].items():
        yield f"    {name} = {value!r}"


def _language(known: Mapping[str, str] | None) -> str:
    if known is None:
        return "not known"
    return _short(known["code"]) + " (guessed from the file names)" * (known["origin"] == "file names")


def _numbers(stored: Mapping[str, int]) -> str:
    """Describe the number types of the stored weights, such as "float16 99.8%, float32 0.2% (not quantized)".

    `stored` is how many numbers of each type the model has.
    """
    total = max(sum(stored.values()), 1)
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
    shares = {kind: f" {count / total:.1%}" if len(stored) > 1 else "" for kind, count in stored.items()}
    parts = [names.get(kind, kind) + share for kind, share in shares.items()]
    is_quantized = any(kind not in names and kind not in WHOLE_NUMBERS for kind in stored)
    return f"{', '.join(parts)} ({'quantized' if is_quantized else 'not quantized'})"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _short(value: object, limit: int = 80) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
