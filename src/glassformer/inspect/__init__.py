"""Look inside a model."""

from glassformer.inspect.pictures import draw_attention, draw_positions

__all__ = ["draw_attention", "draw_positions"]
