"""Training: the loop, optimizers, schedules, losses, checkpoints, and the estimates of time and memory."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.training.fit_loop import FitReport, fit
    from glassformer.training.losses import label_smoothed_cross_entropy
else:
    from glassformer.base.lazy import lazy_names

    __getattr__ = lazy_names(__name__, {"fit_loop": ["FitReport", "fit"], "losses": ["label_smoothed_cross_entropy"]})

__all__ = ["FitReport", "fit", "label_smoothed_cross_entropy"]
