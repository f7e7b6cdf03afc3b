"""The explorer shows every preset family and every pipeline in a real browser, with the numbers of a plain forward."""

import re

import numpy as np
import pytest
import torch

from explorer_browser import VIEWS, go, number, numbers
from glassformer import build_model, preset
from glassformer.inspect.explanation import explain
from glassformer.models.presets import PRESETS
from glassformer.nn import capture_attention
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.mask_filler import MaskFiller
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import MAKERS, SHORT, make, tokenizer

TEXT = "the old cat sees the saw"
FAMILIES = [name for name in PRESETS if name.startswith("tiny-")]


def pipeline_of(family, **changes):
    """A pipeline around a random model of the family."""
    torch.manual_seed(0)
    own = tokenizer()
    model = build_model(preset(family, vocab_size=own.vocab_size, **changes)).eval()
    if model.kind == "encoder":
        return MaskFiller(model, Reader.own(own))
    return LanguageModel(model, own, SHORT) if model.kind == "decoder" else Translator(model, own, own, SHORT)


def show_all(pages, explanation):
    page = pages(explanation)
    for view in VIEWS:
        go(page, view)
        page.wait_for_selector(f".view-{view}")
    assert page.problems == []
    return page


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_shown(pages, family):
    show_all(pages, explain(pipeline_of(family), TEXT, name=family, max_tokens=4).data)


@pytest.mark.full
@pytest.mark.parametrize("kind", MAKERS)
def test_every_pipeline_is_shown(pages, kind):
    text = f"what?\t{TEXT}" if kind.__name__ in ("Extractor", "Answerer", "Comparer") else TEXT
    show_all(pages, explain(make(kind), text, name="tiny", max_tokens=4).data)


@pytest.mark.parametrize("kind", [Classifier, pytest.param(LanguageModel, marks=pytest.mark.full), Translator])
def test_numbers_on_the_page_are_those_of_a_plain_forward(pages, kind):
    pipe = make(kind)
    found = explain(pipe, TEXT, name="tiny").data
    sides = {side: torch.tensor([one["ids"]]) for side, one in found["text"].items() if one is not None}
    inputs = sides if pipe.model.kind == "encoder_decoder" else {"tokens": sides.get("target", sides["source"])}
    with torch.no_grad(), capture_attention(pipe.model) as captured:
        output = pipe.model(**inputs)[0]
    stack = found["stacks"][-1]["name"]
    side = "cross" if kind is Translator else "self"
    page = pages(found, f"view=attention&attention={stack}-{side}&layer=0&head=1&query=2")
    row = captured[f"{stack}.layers.0.{side}_attn"][0, 1, 2].double().sort(descending=True).values[:8].numpy()
    np.testing.assert_allclose(numbers(page, ".reading .bar-value"), row[row >= 5e-5], atol=1e-4)
    go(page, "next")
    shown = [number(text) / 100 for text in page.locator(".bars .bar-value").all_text_contents()]
    if kind is Classifier:
        expected = output.softmax(-1).sort(descending=True).values
    else:
        place = found["text"]["target"]["prompt"] - 1
        expected = output[place].softmax(-1).sort(descending=True).values[:20]
    np.testing.assert_allclose(shown[: len(expected)], expected.numpy(), atol=1e-4)
    if kind is not Classifier:
        go(page, "lens")
        best = page.locator(".lens tbody tr:first-child small").all_text_contents()
        count = len(best)
        start = int(re.search(r"\d+", page.locator(".slider output").inner_text())[0]) if len(output) > count else 0
        likeliest = output.softmax(-1).max(-1).values[start : start + count]
        np.testing.assert_allclose([float(text) for text in best], likeliest.numpy(), atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("kind", [LanguageModel, Classifier])
def test_a_thousand_tokens_of_a_real_model_are_shown(pages, kind):
    pipe = pipeline_of("tiny-llama" if kind is LanguageModel else "tiny-bert-base", max_len=2000)
    found = explain(pipe, "the old cat sees the big saw " * 145, name="long", max_tokens=3).data
    assert len(found["text"]["source"]["ids"]) > 1000
    show_all(pages, found)
