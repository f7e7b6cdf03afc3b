"""The loss of the whole model's own outputs is that of its answer, for every kind of head."""

import pytest
import torch
import torch.nn.functional as F

from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.objective import Objective
from glassformer.inspect.pipeline_text import read_text
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.embedder import Embedder
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.mask_filler import MaskFiller
from glassformer.pipelines.tagger import Tagger
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make


def measure(kind, text="the old cat", **options):
    pipe = make(kind)
    read = read_text(pipe, text, ExplainOptions(max_tokens=4, **options))
    with torch.no_grad():
        output = read.model(**read.inputs(copies=2))
    objective = Objective(read, output, pipe)
    losses = objective.losses(output)
    torch.testing.assert_close(losses[0], losses[1])
    return read, output[0], objective, losses[0]


@pytest.mark.parametrize("kind", [LanguageModel, Translator])
def test_loss_of_written_tokens(kind):
    read, output, objective, loss = measure(kind)
    first = read.target.n_given - 1
    wanted = torch.tensor([*read.target.ids[first + 1 :], read.next_id])
    torch.testing.assert_close(loss, F.cross_entropy(output[first:], wanted))
    logs = output.log_softmax(-1)
    torch.testing.assert_close(objective.explained(output[None], first)[0], logs[first, read.target.ids[first + 1]])
    assert objective.answer_at(first) == read.target.ids[first + 1]
    assert objective.answer_at(-1) is None


def test_loss_of_labels_tags_spans_and_blanks():
    _, output, _, loss = measure(Classifier)
    torch.testing.assert_close(loss, -output.log_softmax(-1).max())
    _, output, _, loss = measure(Tagger)
    torch.testing.assert_close(loss, -output.log_softmax(-1).max(-1).values.mean())
    _, output, _, loss = measure(Extractor, "what?\tthe old cat")
    torch.testing.assert_close(loss, -output.log_softmax(0).max(0).values.mean())
    read, output, _, loss = measure(MaskFiller, "the ___ cat")
    place = read.source.ids.index(3)
    torch.testing.assert_close(loss, -output[place].log_softmax(-1).max())


def test_loss_of_a_vector_is_its_distance():
    _, output, objective, loss = measure(Embedder)
    assert float(loss) == pytest.approx(0.0, abs=1e-6)
    assert float(objective.losses(-output[None])[0]) == pytest.approx(2.0, abs=1e-6)
