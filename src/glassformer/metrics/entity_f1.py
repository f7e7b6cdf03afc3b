"""Entity F1, computed by seqeval. As in conlleval, an entity is correct only if its words and label match exactly."""

from collections.abc import Sequence
from importlib.metadata import version

from glassformer.metrics.scores import Scores

Tags = Sequence[Sequence[str]]


def score_entities(found: Tags, true: Tags) -> Scores:
    """Return F1, precision and recall of the entities, and F1 per label, in percent.

    `found` are the predicted IOB2 tags and `true` the correct ones, as one list per sentence.
    """
    try:
        from seqeval.metrics.v1 import precision_recall_fscore_support
        from seqeval.scheme import IOB2
    except ImportError as error:
        raise ImportError("scores of entities need seqeval: pip install seqeval") from error
    if len(found) != len(true) or any(len(a) != len(b) for a, b in zip(found, true, strict=True)):
        raise ValueError(f"tags of {len(found)} sentences for {len(true)}: expected one for each word of each")
    if not true:
        raise ValueError("there are no sentences: expected at least one")
    both = [list(tags) for tags in true], [list(tags) for tags in found]
    labels = sorted({tag[2:] for side in both for tags in side for tag in tags if tag != "O"})
    if not labels:  # no entities expected, none predicted
        return Scores({"f1": 0.0, "precision": 0.0, "recall": 0.0})

    how = {"scheme": IOB2, "zero_division": 0}
    precision, recall, f1, _ = precision_recall_fscore_support(*both, average="micro", **how)
    each = precision_recall_fscore_support(*both, average=None, **how)[2]
    values = {"f1": f1, "precision": precision, "recall": recall}
    values |= {f"f1_{label}": value for label, value in zip(labels, each, strict=True)}
    signature = f"seqeval:{version('seqeval')}|mode:strict|scheme:IOB2|average:micro"
    return Scores({name: 100 * float(value) for name, value in values.items()}, {"f1": signature})
