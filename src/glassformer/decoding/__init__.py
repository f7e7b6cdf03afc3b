"""From a trained model to text: one token after the other."""

from glassformer.decoding.greedy import continue_greedily, translate_greedily

__all__ = ["continue_greedily", "translate_greedily"]
