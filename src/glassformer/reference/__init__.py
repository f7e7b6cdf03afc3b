"""The Transformer from scratch in NumPy: forward pass, hand-written backward pass, training and decoding.

Read it in this order: text, config, parameters, blocks, positions, disentangled, attention, layers, heads, models,
initial, training, decoding. It imports nothing else of this project, so that tests can check the torch models against
it: with the same parameters, both must give the same outputs and gradients. `python -m glassformer.reference` trains a
model to reverse sequences in under a minute.
"""

from glassformer.reference.attention import masked_softmax, merge_heads, softmax, split_heads
from glassformer.reference.config import Config
from glassformer.reference.decoding import beam_search, continues, greedy, translates
from glassformer.reference.initial import initial_parameters, parameter_shapes
from glassformer.reference.models import DecoderModel, EncoderDecoderModel, EncoderModel, build_model
from glassformer.reference.positions import sinusoids
from glassformer.reference.text import Vocabulary, simple_tokenizer
from glassformer.reference.training import Adam, label_smoothed_cross_entropy

__all__ = [
    "Adam",
    "Config",
    "DecoderModel",
    "EncoderDecoderModel",
    "EncoderModel",
    "Vocabulary",
    "beam_search",
    "build_model",
    "continues",
    "greedy",
    "initial_parameters",
    "label_smoothed_cross_entropy",
    "masked_softmax",
    "merge_heads",
    "parameter_shapes",
    "simple_tokenizer",
    "sinusoids",
    "softmax",
    "split_heads",
    "translates",
]
