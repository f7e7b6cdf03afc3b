"""Pictures of a model's attention weights and position encodings.

`page.py` writes an HTML report of a translation model with its learning curves and attention.
"""

from glassformer.inspect.pictures import draw_attention, draw_positions

__all__ = ["draw_attention", "draw_positions"]
