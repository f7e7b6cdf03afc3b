"""Text generation: greedy and beam search, sampling, logit rules, streaming, scoring and continuous batching."""

from glassformer.decoding.beam import BeamStep, Hypothesis, beam_steps, search_by_beam
from glassformer.decoding.engine import Engine
from glassformer.decoding.engine_request import EngineFullError, EngineRequest
from glassformer.decoding.generate import generate, stream
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.open_batch import GeneratedText
from glassformer.decoding.scoring import score_pairs, score_texts
from glassformer.decoding.text_stream import TextStream
from glassformer.runtime.choose_runner import record_steps

__all__ = [
    "BeamStep",
    "Engine",
    "EngineFullError",
    "EngineRequest",
    "GeneratedText",
    "GenerationConfig",
    "Hypothesis",
    "TextStream",
    "beam_steps",
    "generate",
    "record_steps",
    "score_pairs",
    "score_texts",
    "search_by_beam",
    "stream",
]
