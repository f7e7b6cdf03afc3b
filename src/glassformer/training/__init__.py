"""How models learn."""

from glassformer.training.fit import FitReport, fit
from glassformer.training.losses import label_smoothed_cross_entropy

__all__ = ["FitReport", "fit", "label_smoothed_cross_entropy"]
