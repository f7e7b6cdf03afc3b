"""The highest scores of each row in a defined order, which torch's topk does not give to ties."""

from torch import Tensor


def stable_topk(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest scores of each row (N, V) and their tokens, highest first; ties: lower token first.

    `Tensor.topk` returns ties in any order. On a GPU only the returned tokens are put in order: which of more
    than `count` tied tokens are returned is undefined. To define it, one would wait for the GPU or sort all tokens.
    """
    values, places = scores.topk(min(count + 1, scores.shape[1]))
    if not scores.is_cuda:
        has_ties = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > float("-inf"))
        if has_ties.any():
            values, places = scores.sort(descending=True, stable=True)
        return values[:, :count], places[:, :count]
    values, (places, order) = values[:, :count], places[:, :count].sort()
    values, order = values.gather(1, order).sort(descending=True, stable=True)
    return values, places.gather(1, order)
