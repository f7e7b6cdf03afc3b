"""From a trained model to text: one token after the other."""

from glassformer.decoding.beam import BeamStep, Hypothesis, beam_steps, search_by_beam
from glassformer.decoding.engine import Engine, EngineFullError, Request
from glassformer.decoding.generate import Written, generate, stream
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.scoring import score_pairs, score_texts
from glassformer.decoding.text_stream import TextStream
from glassformer.runtime.recorded import record_steps

__all__ = [
    "BeamStep",
    "Engine",
    "EngineFullError",
    "GenerationConfig",
    "Hypothesis",
    "Request",
    "TextStream",
    "Written",
    "beam_steps",
    "generate",
    "record_steps",
    "score_pairs",
    "score_texts",
    "search_by_beam",
    "stream",
]
