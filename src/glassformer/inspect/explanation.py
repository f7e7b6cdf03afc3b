"""Build the explanation of one text: every number that the explorer page shows, as one JSON object."""

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.inspect.ablation import ablate
from glassformer.inspect.attribution import describe_attribution
from glassformer.inspect.beam_tree import TracingWriter
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.head_ablation import measure_heads, write_without_heads
from glassformer.inspect.health import check_health
from glassformer.inspect.json_values import number, numbers
from glassformer.inspect.learning import describe_learning
from glassformer.inspect.lens import describe_lens
from glassformer.inspect.next_tokens import describe_next
from glassformer.inspect.objective import Objective
from glassformer.inspect.output_files import PAGE, check_explanation_file
from glassformer.inspect.page_file import page_html, write_page_file
from glassformer.inspect.pipeline_text import (
    ModelText,
    n_weights,
    read_text,
    source_tokenizer,
    target_tokenizer,
    write_tokens,
    written_text,
)
from glassformer.inspect.position_pictures import describe_positions
from glassformer.inspect.stack_numbers import describe_stacks, pack_map, record_text, roll_out
from glassformer.inspect.whole_outputs import WholeOutputs
from glassformer.models.transformer import Model
from glassformer.pipelines.pipeline import Pipeline, check_text
from glassformer.progress import Step
from glassformer.text.merge_steps import cut_text

VERSION = 1


class Explanation:
    """The explanation of one text: `data` holds it as JSON values. A notebook shows it as a page."""

    def __init__(self, data: dict[str, Any]):
        self.data = data

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Write the page as one HTML file, which needs no other file and no network.

        An older page of an explanation is replaced. Any other existing file is replaced only with `overwrite`.
        """
        path = Path(path)
        check_explanation_file(path, PAGE, overwrite=overwrite)
        write_page_file(path, self.data)

    def _repr_html_(self) -> str:
        page = html.escape(page_html(self.data), quote=True)
        return f'<iframe srcdoc="{page}" title="Explanation" style="width: 100%; height: 720px; border: 0"></iframe>'

    def to_json(self) -> str:
        """Return the explanation as JSON."""
        return json.dumps(self.data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def explain(
    pipe: Pipeline, text: str, *, name: str = "model", run: Path | str | None = None, **options: Any
) -> Explanation:
    """Explain what a model does with one text. `options` are the fields of `ExplainOptions`.

    The model may be an encoder, a decoder or an encoder-decoder, trained here or loaded from another format. `name` is
    what the page calls it; `run` is the folder of its training run, whose curve and checkpoints are shown.

    >>> import glassformer as gf
    >>> _ = gf.train("classification", data="reviews.tsv", out="my-classifier", minutes=5)
    >>> explained = gf.explain(gf.load("my-classifier"), "it is good")
    >>> explained.data["text"]["source"]["pieces"]
    [' it', ' is', ' good', '</s>']
    """
    if isinstance(pipe, str | Path):
        raise TypeError(f"pipe is {str(pipe)!r}: expected a loaded model, such as gf.load({str(pipe)!r})")
    folder = None if run is None else Path(run)
    return Explanation(build_explanation(pipe, text, ExplainOptions(**options), name=name, run=folder))


def build_explanation(
    pipe: Pipeline,
    text: str,
    options: ExplainOptions,
    *,
    name: str = "model",
    run: Path | None = None,
    wholes: WholeOutputs | None = None,
) -> dict[str, Any]:
    """Return the explanation of one text as JSON values.

    `run` is the folder of the model's training run. `wholes` keeps what the whole model answered, for later calls that
    switch a part of it off.
    """
    model: Any = pipe.model  # type: ignore[attr-defined]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _build(pipe, model, check_text(text), options, name, run, wholes or WholeOutputs())
    finally:
        model.train(was_training)


def _build(
    pipe: Pipeline,
    model: Any,
    text: str,
    options: ExplainOptions,
    name: str,
    run: Path | None,
    wholes: WholeOutputs,
) -> dict[str, Any]:
    baseline = None
    if options.ablate:
        whole = wholes.get(pipe, text, options)
        if whole is None:
            read = read_text(pipe, text, options)
            output = model(**read.inputs())
            whole = describe_output(pipe, read, output, Objective(read, output, pipe))
        baseline = {"output": whole, "loss": whole["loss"]}
    with ablate(model, options.ablate), Step("explaining", len(options.parts) + 1) as step:
        writer = TracingWriter(target_tokenizer(pipe))
        read = read_text(pipe, text, options, writer if "beam" in options.parts else write_tokens)
        recorded = record_text(read)
        objective = Objective(read, recorded.output, pipe)
        maps = roll_out(read, recorded)
        step.advance(1)

        def part(name: str, compute: Callable[[], Any]) -> Any:
            if name not in options.parts:
                return None
            found = compute()
            step.advance(1)
            return found

        def heads() -> list[dict[str, Any]]:
            found = measure_heads(pipe, read, objective, recorded.output)
            part("rewriting", lambda: write_without_heads(pipe, text, read, options, found))
            return found

        answer = describe_output(pipe, read, recorded.output, objective)
        wholes.put(pipe, text, options, answer)
        return {
            "version": VERSION,
            "model": describe_model(model, name, pipe),
            "options": options.to_json(text),
            "text": {
                "source": read.source.to_json(),
                "target": None if read.target is None else read.target.to_json(),
            },
            "output": answer,
            "baseline": baseline,
            "stacks": part("attention", lambda: describe_stacks(read, recorded)),
            "rollout": {name: pack_map(values) for name, values in maps.items()},
            "positions": describe_positions(model),
            "lens": part("lens", lambda: describe_lens(read, recorded.activations)),
            "next": part("next", lambda: describe_next(read, recorded.output)),
            "beam": part("beam", lambda: writer.tree),
            "attribution": part("attribution", lambda: describe_attribution(read, objective, maps, options.position)),
            "ablation": part("ablation", heads),
            "learning": part("learning", lambda: run and describe_learning(pipe, read, options, run)),
            "tokenization": describe_tokenization(source_tokenizer(pipe), text),
            "health": part("health", lambda: check_health(read, objective)),
        }


def describe_tokenization(tokenizer: Any, text: str) -> dict[str, Any]:
    """Return how a text is cut: its words, the tokens of each, and the merges of byte-pair encoding in order."""
    cut = cut_text(tokenizer, text)
    merges = None if cut.merges is None else [merge._asdict() for merge in cut.merges]
    return {"kind": tokenizer.kind, "pieces": cut.words, "merges": merges}


def describe_model(model: Model, name: str, pipe: Any = None) -> dict[str, Any]:
    """Return the name, kind and sizes of a model."""
    config = model.config
    return {
        "name": name,
        "family": getattr(pipe, "task", None) or type(pipe).__name__,
        "kind": config.kind.replace("_", "-"),
        "parameters": n_weights(model),
        "config": config.to_dict(),
        "layers": {"encoder": config.n_encoder_layers, "decoder": config.n_decoder_layers},
        "heads": config.n_heads,
        "kv_heads": config.kv_heads,
        "head_width": config.head_size,
        "width": config.d_model,
        "ffn_width": config.d_ff,
        "vocabulary": config.vocab_size,
        "norm_order": config.norm_placement,
        "positions": config.positions,
    }


def describe_output(pipe: Any, read: ModelText, output: Tensor, objective: Objective) -> dict[str, Any]:
    """Return the answer of the model: the text, label, tags or vector, and its loss."""
    found: dict[str, Any] = {"text": "", "kind": "text", "labels": None, "loss": None}
    found["loss"] = number(objective.losses(output)[0])
    head = read.model.config.head
    if read.target is not None:
        found["text"] = written_text(read.model, read.target)
    elif head == "sequence_class":
        scores = output[0].float().sigmoid() if objective.is_multi_label else output[0].float().softmax(-1)
        order = scores.argsort(descending=True, stable=True).tolist()
        found["labels"] = [{"label": pipe.labels[i], "probability": number(scores[i])} for i in order]
        chosen = [i for i in order if scores[i] > 0.5] if objective.is_multi_label else order[:1]
        found |= {"kind": "label", "text": ", ".join(pipe.labels[i] for i in chosen)}
    elif head == "embedding":
        found |= {"kind": "vector", "text": f"a vector of {output.shape[-1]} numbers", "vector": numbers(output[0])}
    else:
        kind = {"token_class": "tags", "language_model": "mask"}.get(head, "text")
        found |= {"kind": kind, "text": pipe.run(read.source.text)}
    return found
