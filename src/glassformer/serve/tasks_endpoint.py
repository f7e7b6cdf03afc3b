"""`/v1/tasks/{model}`: the task that a model was trained for, with its whole result as JSON."""

import asyncio
import copy
import secrets
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from glassformer.decoding import GenerationConfig
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.mask_filler import MaskFiller
from glassformer.pipelines.pipeline import InputTooLongError, LineAnswer, LineRequest
from glassformer.pipelines.text_to_text import TextToText
from glassformer.serve.access_log import note_fact
from glassformer.serve.api_errors import ApiError, bad_value
from glassformer.serve.embeddings_endpoint import check_queue
from glassformer.serve.engine_writer import EngineWriter
from glassformer.serve.event_stream import answer_unless_gone
from glassformer.serve.generation_fields import GREEDY_BELOW, check_max_tokens
from glassformer.serve.served_models import ServedModel
from glassformer.serve.server_state import ServerState, state_of
from glassformer.serve.task_schemas import PairInput, QuestionInput, TaskRequest
from glassformer.serve.text_jobs import answer_in_jobs
from glassformer.serve.word_alignment import align_words

router = APIRouter(tags=["Tasks"])
WRITING_FIELDS = ("beam", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty")
LANGUAGE_FIELDS = ("source_language", "target_language")
SAMPLING_FIELDS = ("top_k", "top_p", "min_p", "seed")


@router.post("/v1/tasks/{name:path}", summary="Translate, classify, tag, summarize, answer, embed or fill in")
async def run_task(name: str, body: TaskRequest, request: Request) -> JSONResponse:
    """Do the task of a model with each input, and return one result for each."""
    server = state_of(request)
    return JSONResponse(await answer_unless_gone(request, _run(server, name, body, request), server.limits.timeout))


async def _run(server: ServerState, name: str, body: TaskRequest, request: Request) -> dict[str, Any]:
    inputs = body.input if isinstance(body.input, list) else [body.input]
    if not 1 <= len(inputs) <= server.limits.max_inputs:
        limit = server.limits.max_inputs
        raise ApiError(400, f"input has {len(inputs)} texts: expected 1 to {limit}", param="input")
    async with server.shelf.lend(name) as model:
        _check_fields(body, model)
        lines = [_as_line(one) for one in inputs]
        note_fact(request.scope, model=name, inputs=len(lines))
        pipeline = _in_languages(body, model)
        generation = _generation(body, pipeline.generation, server) if model.lane is not None else None
        line_request = LineRequest(
            n_best=body.n_best, with_scores=body.scores or body.n_best is not None, generation=generation
        )
        check_queue(server)
        # Requests with other languages than the model's are joined with no others.
        can_join = pipeline is model.pipeline
        # The target language of mBART is the token with which the decoder begins, and an engine has only one.
        has_same_begin = getattr(pipeline, "begin", None) == getattr(model.pipeline, "begin", None)
        pipeline = copy.copy(pipeline)
        pipeline.truncate, pipeline.refuses_long = body.truncate, not body.truncate
        try:
            if model.lane is not None and has_same_begin:
                answers = await _answer_by_engine(server, model, pipeline, lines, line_request)
            else:
                kind = ("task", name, body.n_best, line_request.with_scores, body.truncate) if can_join else object()
                answer = partial(pipeline.answer_lines, request=line_request)
                answers = await answer_in_jobs(server.compute, kind, pipeline.model, lines, answer)
        except InputTooLongError as error:
            message = f"{error.reason}; shorten it, or set truncate=true to have it cut"
            raise ApiError(400, message, param="input", code="context_length_exceeded") from error
        results = [{"output": answer.line, **answer.record} for answer in answers]
        if body.alignment:
            for line, result in zip(lines, results, strict=True):
                result["alignment"] = await _align(server, pipeline, line, result["output"])
        return {"object": "task.result", "model": name, "task": model.kind, "results": results}


def _in_languages(body: TaskRequest, model: ServedModel) -> Any:
    """Return the pipeline of a model, for the languages of the request if it gives some."""
    pipeline = model.pipeline
    if not isinstance(pipeline, TextToText):
        return pipeline
    try:
        found = pipeline.with_languages(body.source_language or "", body.target_language or "")
        found.check_languages()
    except ValueError as error:
        field = "source_language" if str(error).startswith("source") else "target_language"
        raise ApiError(400, str(error), param=field) from error
    return found


async def _answer_by_engine(
    server: ServerState, model: ServedModel, pipeline: Any, lines: list[str], request: LineRequest
) -> list[LineAnswer]:
    """Answer lines with the engine of a model that generates text."""
    assert model.lane is not None
    pipeline.writer = writer = EngineWriter(server.compute, model.lane, server.limits.timeout)
    try:
        found: list[LineAnswer] = await server.run_task(pipeline.answer_lines, lines, request)
        return found
    finally:
        writer.cancel()


async def _align(server: ServerState, pipeline: Any, source: str, target: str) -> list[dict[str, Any]]:
    job = server.compute.answer(
        object(), [(source, target)], lambda pairs: [align_words(pipeline, *pair) for pair in pairs]
    )
    (found,) = await asyncio.wrap_future(job)
    return list(found)


def _check_fields(body: TaskRequest, model: ServedModel) -> None:
    """Raise an ApiError for a setting that has no effect on the model."""
    given = [field for field in WRITING_FIELDS if getattr(body, field) is not None]
    if model.lane is None:
        if given or (body.scores and not isinstance(model.pipeline, MaskFiller)):
            field = (given or ["scores"])[0]
            raise ApiError(400, f"{field} has no effect: {model.name} ({model.kind}) writes no text", param=field)
        if body.n_best is not None and not isinstance(model.pipeline, Classifier | MaskFiller):
            raise ApiError(400, f"n_best has no effect: {model.name} ({model.kind}) gives one answer", param="n_best")
    languages = [field for field in LANGUAGE_FIELDS if getattr(body, field) is not None]
    if languages and not isinstance(model.pipeline, TextToText):
        field = languages[0]
        raise ApiError(400, f"{field} has no effect: {model.name} ({model.kind}) has no language codes", param=field)
    if body.alignment and languages:
        raise ApiError(400, f"alignment with {languages[0]}: expected one of them", param="alignment")
    if body.alignment and not hasattr(model.pipeline, "source_tokenizer"):
        raise ApiError(400, f"alignment has no effect: {model.name} ({model.kind}) is no translator", param="alignment")


def _generation(body: TaskRequest, base: GenerationConfig, server: ServerState) -> GenerationConfig:
    """Return the settings of the model, changed by the request as the options of `glassformer run` change them."""
    changes: dict[str, Any] = {"num_return_sequences": body.n_best or 1}
    longest = check_max_tokens("max_tokens", body.max_tokens, base.max_new_tokens, server.limits)
    changes |= {"max_new_tokens": longest, "min_new_tokens": min(base.min_new_tokens, longest)}
    if body.repetition_penalty is not None:
        changes["repetition_penalty"] = body.repetition_penalty
    samples = base.do_sample if body.temperature is None else body.temperature >= GREEDY_BELOW
    if samples:
        if body.beam is not None and body.beam > 1:
            raise bad_value("beam", body.beam, "1 with a temperature above 0: a beam search draws nothing")
        changes |= {"do_sample": True, "temperature": body.temperature or base.temperature, "num_beams": 1}
        changes |= {field: getattr(body, field) for field in SAMPLING_FIELDS if getattr(body, field) is not None}
        changes.setdefault("seed", secrets.randbits(63))
    else:
        wrong = next((field for field in SAMPLING_FIELDS if getattr(body, field) is not None), None)
        if wrong is not None:
            raise bad_value(wrong, getattr(body, wrong), "a temperature above 0 with it: without one nothing is drawn")
        beams = body.beam or max(base.num_beams, body.n_best or 1)
        if beams < (body.n_best or 1):
            raise bad_value("n_best", body.n_best, f"at most beam={beams}, or a temperature above 0")
        changes |= {"do_sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
        changes |= {"num_beams": beams}
    if changes["num_beams"] > 1:
        changes |= {"eos_token_id": (), "stop_strings": ()}
    if changes["num_beams"] != base.num_beams:
        changes |= {"num_beam_groups": 1, "diversity_penalty": 0.0}
    rows = max(changes["num_beams"], changes["num_return_sequences"])
    if rows > server.batch.max_rows:
        field = "beam" if changes["num_beams"] == rows else "n_best"
        raise bad_value(field, rows, f"at most {server.batch.max_rows} (--max-rows of the server)")
    return replace(base, **changes)


def _as_line(one: "str | PairInput | QuestionInput") -> str:
    """Return an input as a line of `glassformer run`, where a tab separates two texts."""
    if isinstance(one, str):
        return one
    if isinstance(one, PairInput):
        return one.first.replace("\t", " ") + "\t" + one.second.replace("\t", " ")
    return one.question.replace("\t", " ") + "\t" + one.context
