"""The number that ablation and attribution look at: how likely the model finds its own answer.

An `Objective` is made from the outputs of the whole model for one text. It then measures other outputs for the same
text, such as those of the model without a head: with the same tokens, labels or vector as the answer.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.inspect.pipeline_text import ModelText
from glassformer.pipelines.mask_filler import MaskFiller, mask_of


class Objective:
    """Measures outputs of a model (N, ...) by the answer that the whole model gives: one loss for each row.

    The loss is the mean negative log-probability of the written tokens, of the predicted label, of the predicted tags,
    of the predicted span, or of the tokens in the blanks (of all tokens, if there is no blank). For vectors it is one
    minus the cosine with the vector of the whole model.
    """

    def __init__(self, text: ModelText, output: Tensor, pipe: Any = None):
        self.head = text.model.config.head
        self.is_multi_label = bool(getattr(pipe, "multi_label", False))
        output = output.detach()
        self.places: list[int] = []
        """The positions whose outputs count; empty for a head with one output for the whole text."""
        self.wanted: Tensor
        """The answer: token ids, a label, tags, or a vector."""
        if text.target is not None and self.head == "language_model":
            answers = text.answers
            is_written = len(text.target.ids) > text.target.n_given
            first = text.target.n_given - 1 if is_written else 0  # otherwise: how well is the prompt itself predicted
            self.places = [place for place in range(first, len(answers)) if answers[place] is not None]
            self.wanted = torch.tensor([answers[place] for place in self.places], device=output.device)
        elif self.head == "language_model":
            mask = mask_of(pipe.reader) if isinstance(pipe, MaskFiller) else None
            blanks = [place for place, token in enumerate(text.source.ids) if token == mask]
            self.places = blanks or list(range(len(text.source.ids)))
            ids = torch.tensor(text.source.ids, device=output.device)
            self.wanted = output[0, blanks].argmax(-1) if blanks else ids
        elif self.head == "token_class":
            self.places = list(range(output.shape[1]))
            self.wanted = output[0].argmax(-1)
        elif self.head == "span":
            self.wanted = output[0].argmax(0)  # (2,), the start and the end
        elif self.head == "sequence_class":
            self.wanted = output[0] > 0 if self.is_multi_label else output[0].argmax()
        else:
            self.wanted = output[0] if output.dim() == 2 else output[0].mean(0)

    def losses(self, output: Tensor) -> Tensor:
        """Return the loss of each row of outputs (N, ...)."""
        output = output.float()
        if self.head in ("language_model", "token_class"):
            logs = output[:, self.places].log_softmax(-1)  # (N, P, V)
            return -logs.gather(-1, self.wanted.expand(len(output), -1)[:, :, None])[:, :, 0].mean(1)
        if self.head == "span":
            logs = output.log_softmax(1)  # (N, T, 2)
            return -(logs[:, self.wanted[0], 0] + logs[:, self.wanted[1], 1]) / 2
        if self.head == "sequence_class":
            if self.is_multi_label:
                wanted = self.wanted.to(output).expand_as(output)
                return F.binary_cross_entropy_with_logits(output, wanted, reduction="none").mean(1)
            return -output.log_softmax(-1)[:, int(self.wanted)]
        vectors = output if output.dim() == 2 else output.mean(1)
        return 1 - F.cosine_similarity(vectors, self.wanted.float()[None], dim=-1)

    def explained(self, output: Tensor, place: int | None) -> Tensor:
        """Return the number that attribution explains, for each row: the log-probability of the answer at one position.

        Without a position it is that of the whole answer. For vectors it is the product with the whole model's vector.
        """
        if self.head == "embedding":
            return output.float() @ self.wanted.float()
        if place is None or place not in self.places:
            return -self.losses(output)
        wanted = int(self.wanted[self.places.index(place)])
        return output[:, place].float().log_softmax(-1)[:, wanted]

    def answer_at(self, place: int) -> int | None:
        """Return the token or tag at a position of the answer; None if the position is not a part of it."""
        return int(self.wanted[self.places.index(place)]) if place in self.places else None
