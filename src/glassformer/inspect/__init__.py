"""Look inside a model: record and replace activations, explain a text, draw attention and positions.

`page_file.py` writes the explorer page, which shows an explanation.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.inspect.explanation import Explanation, explain
    from glassformer.inspect.pictures import draw_attention, draw_positions
    from glassformer.inspect.recorder import activation_names, patch, record
else:
    from glassformer.base.lazy import lazy_names

    __getattr__ = lazy_names(
        __name__,
        {
            "explanation": ["Explanation", "explain"],
            "pictures": ["draw_attention", "draw_positions"],
            "recorder": ["activation_names", "patch", "record"],
        },
    )

__all__ = ["Explanation", "activation_names", "draw_attention", "draw_positions", "explain", "patch", "record"]
