import json
import re
from html.parser import HTMLParser
from math import inf, nan

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glassformer.inspect.page import HEIGHT, MOST_DOTS, WIDTH, CurvePoint, Sample, write_page

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "' onmouseover='alert(3)",
    "<!--<script>",
    "]]>",
    "&lt;b&gt;",
    "{{data}}",
    "a\u2028b\u2029c",
    "\N{GRINNING FACE}",
    "مرحبا",
    "",
]


class Page(HTMLParser):
    """A page taken apart: its elements as (tag, attributes, own text) in order. Raises where tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.text, self.elements, self.open = text, [], []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))
        if tag != "meta":
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            self.open[-1][2].append(data)

    def find(self, tag, of_class=None):
        return [e for e in self.elements if e[0] == tag and of_class in (None, *e[1].get("class", "").split())]

    def texts(self, tag, of_class=None):
        return ["".join(parts) for _, _, parts in self.find(tag, of_class)]

    @property
    def data(self):
        [text] = [text for text in self.texts("script") if text.startswith("{")]
        return json.loads(text)


def sample(source_tokens=("the", "cat", "</s>"), target_tokens=("die", "Katze"), **others):
    shape = 2, 3, len(target_tokens)
    weights = np.random.default_rng(0).dirichlet(np.ones(len(source_tokens)), size=shape).astype(np.float32)
    fields = {"source": "the cat", "translation": "die Katze", "reference": "die Katze", "weights": weights}
    return Sample(source_tokens=list(source_tokens), target_tokens=list(target_tokens), **(fields | others))


CURVE = [
    CurvePoint(update=10, seconds=30.0, values={"train loss": 4.0}),
    CurvePoint(update=20, seconds=60.0, values={"train loss": 3.0, "valid loss": 3.5, "valid BLEU": 8.0}),
    CurvePoint(update=60, seconds=180.0, values={"train loss": 2.0, "valid loss": 2.5, "valid BLEU": 21.25}),
]


def written(folder, *, title="A page", summary=(("BLEU", "31.2"),), curve=CURVE, samples=None):
    path = folder / "page.html"
    samples = [sample()] if samples is None else samples
    write_page(path, title=title, summary=list(summary), curve=list(curve), samples=samples)
    return Page(path.read_bytes().decode("utf-8"))


def shape_of(page):
    """The elements and the names of their attributes, which no text may change."""
    return [(tag, sorted(attributes)) for tag, attributes, _ in page.elements]


def test_notes_are_paragraphs_and_their_text_stays_text(tmp_path):
    path = tmp_path / "page.html"
    write_page(path, title="A page", summary=[], curve=[], samples=[], notes=["beam 4, <b>511</b> pairs", "{{title}}"])
    text = path.read_text(encoding="utf-8")
    assert '<p dir="auto">beam 4, &lt;b&gt;511&lt;/b&gt; pairs</p><p dir="auto">{{title}}</p>' in text
    assert "notes -->" not in written(tmp_path).text


def test_the_page_holds_title_facts_curves_and_sentences(tmp_path):
    page = written(tmp_path, summary=[("BLEU", "31.2"), ("time", "4:02")], samples=[sample(), sample(reference=None)])
    assert page.texts("title") == page.texts("h1") == ["A page"]
    assert page.texts("dt") == ["BLEU", "time", "Source", "Translation", "Reference", "Source", "Translation"]
    assert page.texts("dd")[:3] == ["31.2", "4:02", "the cat"]
    assert page.texts("text", "label") == ["train loss", "valid loss", "valid BLEU"]
    assert len(page.find("figure")) == len(page.data["charts"]) == 2
    assert len(page.find("div", "attention")) == len(page.data["samples"]) == 2
    assert "minutes of training" in page.texts("text")
    assert len(page.texts("noscript")) == 2


def test_the_last_values_can_be_read_without_the_script(tmp_path):
    page = written(tmp_path)
    assert page.texts("b", "value") == ["2", "2.5", "21.25"]
    assert page.texts("span", "where") == ["update 60, 3:00"] * 3
    assert (
        page.find("svg")[0][1]["aria-label"]
        == "Loss, lower is better: train loss from 4 to 2; valid loss from 3.5 to 2.5"
    )


def test_tokens_and_weights_reach_the_script_to_three_decimals(tmp_path):
    hostile = sample(HOSTILE, HOSTILE[::-1])
    page = written(tmp_path, samples=[hostile])
    [stored] = page.data["samples"]
    assert stored["source"] == HOSTILE
    assert stored["written"] == HOSTILE[::-1]
    assert np.array(stored["weights"]).shape == hostile.weights.shape
    np.testing.assert_allclose(stored["weights"], hostile.weights, atol=0.000501)
    assert not re.search(r"\d\.\d{4}", json.dumps(stored["weights"]))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text_wherever_it_stands(tmp_path, text):
    def page_with(text):
        curve = [CurvePoint(update=1, seconds=1.0, values={f"{text} loss": 1.0, f"{text} BLEU": 1.0})]
        one = sample([text, "a"], [text], source=text, translation=text, reference=text)
        return written(tmp_path, title=text, summary=[(text, text)], curve=curve, samples=[one])

    page = page_with(text)
    assert shape_of(page) == shape_of(page_with("harmless"))
    assert page.texts("title") == page.texts("h1") == [text]
    assert page.texts("dd") == [text] * 4
    assert page.texts("bdi", "name") == [f"{text} loss", f"{text} BLEU"]
    assert page.data["samples"][0]["source"] == [text, "a"]


def test_embedded_json_has_no_character_that_markup_knows(tmp_path):
    page = written(tmp_path, samples=[sample(HOSTILE, HOSTILE)])
    [json_text] = re.findall(r'id="data">(.*?)</script>', page.text, flags=re.DOTALL)
    assert "alert(1)" in json_text
    assert json_text.isascii()
    assert not set(json_text) & set("<>&")


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(codec=None, exclude_categories=())), tokens=st.lists(st.text(), min_size=1))
@example(text="\ud800", tokens=["\x00", "\r"])
def test_any_text_gives_the_same_page_around_it(tmp_path_factory, text, tokens):
    def page_with(text, tokens):
        one = sample(tokens, tokens, source=text, reference=text)
        return written(tmp_path_factory.getbasetemp(), title=text, summary=[(text, text)], samples=[one])

    page = page_with(text, tokens)
    assert shape_of(page) == shape_of(page_with("harmless", tokens))
    assert page.texts("h1") == [text.encode("utf-8", "replace").decode()]
    assert page.data["samples"][0]["source"] == tokens


def test_nothing_is_loaded_from_elsewhere_and_the_script_makes_no_markup(tmp_path):
    text = written(tmp_path).text
    for reference in ("http:", "https:", "//www", "src=", "href", "@import", "url(", "fetch(", "XMLHttpRequest"):
        assert reference not in text
    for maker in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert maker not in text
    assert "default-src 'none'" in text


def test_every_gap_of_the_template_is_filled(tmp_path):
    assert not re.search(r"\{\{\w+\}\}", written(tmp_path).text)


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    assert written(tmp_path).text == written(tmp_path).text


def test_values_that_are_not_finite_are_left_out(tmp_path):
    broken = [
        CurvePoint(update=30, seconds=90.0, values={"train loss": nan, "valid loss": inf, "valid BLEU": -inf}),
        CurvePoint(update=40, seconds=nan, values={"train loss": 9.0}),
        CurvePoint(update=50, seconds=150.0, values={"gone loss": nan, "valid loss": 1e300}),
    ]
    assert written(tmp_path, curve=CURVE + broken).text == written(tmp_path).text


def test_a_long_line_is_drawn_as_means_with_a_band_of_what_they_hide(tmp_path):
    values = np.arange(10 * MOST_DOTS) % 10
    curve = [CurvePoint(update=n + 1, seconds=n, values={"train loss": float(v)}) for n, v in enumerate(values)]
    page = written(tmp_path, curve=curve)
    [[line]] = [chart["lines"] for chart in page.data["charts"]]
    assert len(line) == MOST_DOTS
    assert {value for _, _, value, _ in line} == {"4.5"}
    assert line[0][3] == "mean of updates 1 to 10, 0:09"
    assert len(page.find("polygon", "band")) == 1
    assert not written(tmp_path, curve=curve[:MOST_DOTS]).find("polygon")


def test_points_stand_in_the_drawing_where_their_numbers_say(tmp_path):
    curve = [CurvePoint(update=u, seconds=60.0 * u, values={"x BLEU": 10.0 * u}) for u in (4, 2, 0)]  # in any order
    [[line]] = [chart["lines"] for chart in written(tmp_path, curve=curve).data["charts"]]
    (x0, y0, first, _), (x1, y1, _, _), (x2, y2, last, _) = line
    assert (first, last) == ("0", "40")
    assert x0 < x1 < x2
    assert y0 > y1 > y2  # downwards is larger in a drawing
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


def test_scores_are_drawn_from_zero_and_losses_from_where_they_are(tmp_path):
    curve = [CurvePoint(update=n, seconds=n, values={"loss": 50.0 + n, "BLEU": 50.0 + n}) for n in range(9)]
    labels = written(tmp_path, curve=curve).texts("text")
    assert labels[0] == "50"
    assert labels[labels.index("loss") + 1] == "0"


@pytest.mark.parametrize(
    ("seconds", "axis"),
    [
        ((10, 50), "seconds of training"),
        ((60, 600), "minutes of training"),
        ((60, 20000), "hours of training"),
        ((0, 0), "updates"),
        ((50, 10), "updates"),
    ],
)
def test_the_axis_suits_the_times(tmp_path, seconds, axis):
    curve = [CurvePoint(update=n, seconds=s, values={"loss": 1.0}) for n, s in enumerate(seconds)]
    assert written(tmp_path, curve=curve).texts("text").count(axis) == 1


NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=60, deadline=None)
@given(
    points=st.lists(
        st.builds(
            CurvePoint,
            update=st.integers(0, 10**9),
            seconds=NUMBERS,
            values=st.dictionaries(st.sampled_from(["train loss", "valid loss", "BLEU", "chrF"]), NUMBERS),
        )
    )
)
@example(points=[CurvePoint(update=0, seconds=0.0, values={"BLEU": 5e-324})])
@example(points=[CurvePoint(update=n, seconds=5e-324, values={"loss": n * 9e99 - 9e99}) for n in range(3)])
def test_any_curve_stays_inside_its_drawing(tmp_path_factory, points):
    page = written(tmp_path_factory.getbasetemp(), curve=points)
    for chart in page.data["charts"]:
        for line in chart["lines"]:
            assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y, _, _ in line)


def test_without_curve_or_samples_their_sections_are_left_out(tmp_path):
    assert written(tmp_path).texts("h2") == ["Learning curves", "Attention"]
    assert written(tmp_path, curve=[]).texts("h2") == ["Attention"]
    assert written(tmp_path, samples=[]).texts("h2") == ["Learning curves"]
    bare = written(tmp_path, curve=[], samples=[], summary=[])
    assert bare.texts("h1") == ["A page"]
    assert not bare.texts("h2") + bare.texts("dl")


def test_a_sample_without_written_tokens_shows_its_texts_alone(tmp_path):
    page = written(tmp_path, samples=[sample(target_tokens=(), translation=""), sample()])
    assert page.texts("dd")[1:3] == ["the cat", ""]
    assert [place["data-sample"] for _, place, _ in page.find("div", "attention")] == ["1"]


def test_wrong_weights_are_named_and_nothing_is_written(tmp_path):
    def with_weights(weights):
        return [sample(), sample(weights=weights)]

    expected = r"expected \(layers, heads, 2, 3\), a row for each target token"
    for shape in [(2, 3, 3, 2), (3, 2, 3), (0, 3, 2, 3)]:
        message = rf"samples\[1\]\.weights has shape {re.escape(str(shape))}: {expected}"
        with pytest.raises(ValueError, match=message):
            written(tmp_path, samples=with_weights(np.zeros(shape)))
    for value in (nan, -0.5, 2.0):
        with pytest.raises(ValueError, match=rf"samples\[1\]\.weights holds {value}: expected numbers from 0 to 1"):
            written(tmp_path, samples=with_weights(np.full((1, 1, 2, 3), value)))
    assert not list(tmp_path.iterdir())
