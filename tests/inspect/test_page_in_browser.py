"""The explorer in a real browser: every view of every kind of model. `make test-browser` runs all sizes and colors."""

import json
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import sample_explanations as samples
from explorer_browser import SIZES, VIEWS, go, number, numbers, serious_violations
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.sampling import filter_logits
from glassformer.inspect.page_file import page_html

KINDS = ["encoder", "decoder", "encoder-decoder"]
SERVER = "http://explorer.test/"


ALL = [(kind, size, scheme) for kind in KINDS for size in SIZES for scheme in ("light", "dark")]
FEW = [("encoder", "phone", "dark"), ("encoder-decoder", "laptop", "light")]


@pytest.mark.parametrize(
    ("kind", "size", "scheme"), [case if case in FEW else pytest.param(*case, marks=pytest.mark.full) for case in ALL]
)
def test_every_view_is_shown_without_errors_and_is_accessible(pages, kind, size, scheme, request):
    page = pages(samples.explanation(kind), size=size, scheme=scheme)
    is_full = request.config.getoption("--full")
    for view in VIEWS:
        go(page, view)
        assert page.inner_text("h2")
        assert len(page.inner_text(".intro").split(". ")) >= 2, f"{view} explains itself in two sentences"
        assert page.locator(".formula math").count() >= 1, f"{view} has a formula"
        assert page.locator(".code pre").count() >= 1, f"{view} shows its code"
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{view} needs sideways scrolling"
        if is_full or view == "attention":
            assert serious_violations(page) == [], view
    assert page.problems == []


def test_attention_weights_on_the_page_are_those_of_the_explanation(pages):
    explanation = samples.explanation()
    attention = explanation["stacks"][1]["layers"][1]["attention"][1]
    weights = samples.loaded(attention["weights"])
    page = pages(explanation, "view=attention&attention=decoder-cross&layer=1&head=2&query=3")
    row = np.sort(weights[2, 3])[::-1][:8]
    np.testing.assert_allclose(numbers(page, ".reading .bar-value"), row[row >= 5e-5], atol=1e-4)
    names = page.locator(".reading .bar-name .token-name").all_inner_texts()
    order = np.argsort(-weights[2, 3], kind="stable")[: len(names)]
    assert names == [explanation["text"]["source"]["pieces"][n] for n in order]
    page.select_option("select >> nth=2", "mean")
    mean = np.sort(weights.mean(0)[3])[::-1][:8]
    np.testing.assert_allclose(numbers(page, ".reading .bar-value"), mean[mean >= 5e-5], atol=1e-4)
    page.select_option("select >> nth=1", "rollout")
    rollout = np.sort(samples.loaded(explanation["rollout"]["cross"])[3])[::-1][:8]
    np.testing.assert_allclose(numbers(page, ".reading .bar-value"), rollout[rollout >= 5e-5], atol=1e-4)


@pytest.mark.parametrize(("group", "kind"), [("decoder-self", "decoder"), ("decoder-cross", "encoder-decoder")])
def test_the_arithmetic_of_a_head_gives_the_recorded_weights(pages, group, kind):
    explanation = samples.explanation(kind)
    attention = explanation["stacks"][-1]["layers"][0]["attention"][0 if kind == "decoder" else 1]
    page = pages(explanation, f"view=head&attention={group}&layer=0&head=3&query=2&key=1")
    q, k, v = (samples.loaded(attention[name]) for name in "qkv")
    bias = samples.loaded(attention["bias"])
    scores = k[1] @ q[3, 2] * attention["scale"] + bias[3, 2]  # heads 2 and 3 share the second keys and values
    weights = samples.loaded(attention["weights"])[3, 2]
    assert number(page.inner_text(".score")) == pytest.approx(scores[1], abs=1e-4)
    np.testing.assert_allclose(numbers(page, ".table >> nth=1 >> tbody td:nth-child(6)"), weights, atol=1e-4)
    output = page.locator(".table >> nth=2 >> tbody tr:last-child td b").all_text_contents()[1:]
    np.testing.assert_allclose([number(text) for text in output], weights @ v[1], atol=2e-4)


@pytest.mark.parametrize(
    ("temperature", "k", "p"),
    [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.5, 5, 1.0), (0.8, 0, 0.6), (1.2, 9, 0.5), (2.0, 0, 0.97)],
)
def test_sampling_on_the_page_is_that_of_the_decoder(pages, temperature, k, p):
    explanation = samples.explanation("decoder")
    page = pages(explanation, f"view=next&place=2&temperature={temperature}&top_k={k}&top_p={p}")
    config = GenerationConfig(do_sample=True, temperature=temperature, top_k=k, top_p=p)
    logits = torch.tensor([explanation["next"][2]["all_logits"]], dtype=torch.float64)
    expected = filter_logits(logits, [config]).softmax(-1)[0].numpy()
    shown = [
        0 if text.startswith("cut") else number(text) / 100
        for text in page.locator(".candidates .bar-value").all_text_contents()
    ]
    is_cut_in_the_rest = 0 < (expected[50:] > 0).sum() < 40  # then the page knows it to within one token
    most = 3e-3 if is_cut_in_the_rest else 1e-4
    assert ("estimated" in page.inner_text("main")) == is_cut_in_the_rest
    np.testing.assert_allclose(shown[:20], expected[:20], atol=most)
    assert shown[20] == pytest.approx(expected[20:50].sum(), abs=most)
    assert shown[21] == pytest.approx(expected[50:].sum(), abs=most)


def test_numbers_of_the_other_views_are_those_of_the_explanation(pages):
    explanation = samples.explanation()
    page = pages(explanation, "view=flow&open-decoder=1&block=decoder.1.ffn")
    layer = explanation["stacks"][1]["layers"][1]
    np.testing.assert_allclose(numbers(page, "figure .bar-value"), layer["added"]["feedforward"], atol=1e-4)
    go(page, "lens")
    shown = page.locator(".lens tbody tr:first-child small").all_text_contents()
    best = [place[0]["probability"] for place in explanation["lens"][-1]["tokens"]]
    np.testing.assert_allclose([float(text) for text in shown], best, atol=1e-4)
    go(page, "why")
    for n, method in enumerate(explanation["attribution"]["methods"]):
        np.testing.assert_allclose(
            numbers(page, f".method >> nth={n} >> .bar-value"), method["scores"]["source"], atol=1e-4
        )
    changes = sorted((one["change"] for one in explanation["ablation"]), reverse=True)
    np.testing.assert_allclose(numbers(page, ".table tbody td:nth-child(4)"), changes[:30], atol=1e-4)
    go(page, "learning")
    point = explanation["learning"]["curve"][-1]
    expected = f"loss {point['loss']:.4f} and valid loss {point['validation']['valid loss']:.4f}"
    assert expected in page.inner_text(".sentence")
    go(page, "health")
    assert page.locator(".measured").all_inner_texts() == ["2 of 40 have none", "1.00e\N{MINUS SIGN}7"]
    assert "1 of 2 checks failed" in page.inner_text("main")
    assert page.problems == []


def test_the_beam_is_replayed_step_by_step_with_reasons(pages):
    explanation = samples.explanation()
    beam = explanation["beam"]
    page = pages(explanation, "view=next&step=2")
    nodes = page.locator(".hypothesis")
    expected = [one for step in beam["steps"][:2] for one in step["hypotheses"]]
    assert nodes.count() == len(expected)
    np.testing.assert_allclose(numbers(page, ".hypothesis .size"), [one["score"] for one in expected], atol=1e-4)
    assert page.locator(".hypothesis.dropped").count() == sum(not one["kept"] for one in expected)
    dropped = next(one for one in expected if not one["kept"])
    page.locator(f'[data-hypothesis="{dropped["id"]}"]').press("Enter")
    assert f"Dropped: {dropped['reason']}." in page.inner_text(".side")
    page.locator(".slider input[max='7']").press("End")
    assert nodes.count() == sum(len(step["hypotheses"]) for step in beam["steps"])
    assert page.locator(".hypothesis.best").count() == len(beam["steps"])


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    '"><b>',
    "&lt;",
    "مرحبا",
    "a\u2028b",
    "{{x}}",
]


@pytest.mark.parametrize("kind", [pytest.param("encoder", marks=pytest.mark.full), "encoder-decoder"])
def test_texts_of_models_are_text_in_every_view(pages, kind):
    explanation = samples.explanation(kind, words=HOSTILE)
    explanation["model"]["name"] = explanation["output"]["text"] = explanation["options"]["text"] = HOSTILE[0]
    for one in explanation["ablation"]:
        one["output"] = HOSTILE[1]
    page = pages(explanation)
    for view in VIEWS:
        go(page, view)
        assert page.locator("main img, main script, header img, main b b").count() == 0
    assert page.inner_text("h1") == HOSTILE[0]
    assert page.problems == []


@pytest.mark.full
def test_a_link_restores_the_view(pages):
    page = pages(samples.explanation(), "view=attention")
    page.click(".thumb >> nth=5")
    page.select_option("select >> nth=3", "lines")
    page.click('.strip [data-place="2"]')
    link = page.url
    sentence = page.inner_text(".sentence")
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(".sentence")
    assert page.inner_text(".sentence") == sentence
    assert page.locator("svg.lines").count() == 1
    assert page.get_attribute(".thumb >> nth=5", "aria-pressed") == "true"
    page.evaluate("location.hash = '#view=health'")
    page.wait_for_selector(".view-health")


def test_everything_can_be_reached_with_the_keyboard(pages):
    page = pages(samples.explanation("decoder"), "view=flow")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator('[data-block="decoder.1"]').focus()
    page.keyboard.press("Enter")
    assert page.locator('[data-block="decoder.1.ffn"]').count() == 1
    assert page.evaluate("document.activeElement.dataset.block") == "decoder.1", "the focus stays on the block"
    page.locator('nav a[data-view="attention"]').press("Enter")
    page.locator(".heatmap canvas").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert re.search(r"looks at .+: \d\.\d{4}", page.inner_text("#status"))
    page.keyboard.press("Enter")
    assert "query=" in page.url
    outline = page.evaluate("getComputedStyle(document.querySelector('.heatmap canvas')).outlineStyle")
    assert outline == "solid", "the focus is visible"


def downloaded(page, name):
    with page.expect_download() as found:
        page.click(f".export button:text-is('{name}')")
    return found.value.path().read_bytes()


@pytest.mark.parametrize(
    "view", ["attention", *(pytest.param(view, marks=pytest.mark.full) for view in ("flow", "next", "why"))]
)
def test_a_view_can_be_saved_as_svg_png_and_json(pages, view):
    explanation = samples.explanation("decoder")
    page = pages(explanation, f"view={view}")
    go(page, view)
    svg = ElementTree.fromstring(downloaded(page, "SVG"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(svg.iter())) > 50
    png = downloaded(page, "PNG")
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(png) > 5000, "the picture is not empty"
    saved = json.loads(downloaded(page, "JSON"))
    if view == "attention":
        layer = explanation["stacks"][0]["layers"][-1]["attention"][0]
        np.testing.assert_allclose(saved["weights"], samples.loaded(layer["weights"]).mean(0), atol=1e-5)
    if view == "why":
        assert saved["attribution"] == explanation["attribution"]
    assert page.problems == []


@pytest.mark.full
def test_a_thousand_tokens_stay_usable(pages):
    page = pages(samples.explanation("decoder", n_target=1000, layers=1), "view=attention")
    canvas = page.locator(".heatmap canvas")
    assert canvas.bounding_box()["height"] < 800
    assert "4 \N{MULTIPLICATION SIGN} 4 tokens" in page.inner_text("main")
    assert "explain MODEL --live shows it" in page.inner_text(".exact")
    canvas.focus()
    for key in ["+", "+", "+", "ArrowDown", "ArrowDown"]:
        page.keyboard.press(key)
    assert "looks at" in page.inner_text("#status")
    for view in VIEWS:
        go(page, view)
    assert page.evaluate("document.querySelectorAll('*').length") < 20000
    assert page.problems == []


def test_a_page_of_a_large_model_stays_below_three_megabytes():
    html = page_html(samples.explanation(n_source=30, n_target=30, layers=6))
    assert len(html.encode()) < 3_000_000


@pytest.fixture
def live(browser):
    """The live page: a server that answers with samples and keeps what it was asked."""
    context = browser.new_context()
    page = context.new_page()
    page.asked, page.problems, page.key, page.sample = [], [], None, {}
    page.on("pageerror", lambda error: page.problems.append(str(error)))

    def answer(route):
        path = unquote(route.request.url.removeprefix(SERVER)).split("#")[0]
        if path == "explore":
            route.fulfill(body=page_html(None), content_type="text/html")
        elif path == "v1/models" and page.key and route.request.headers.get("authorization") != f"Bearer {page.key}":
            route.fulfill(status=401, json={"error": {"message": "wrong API key"}})
        elif path == "v1/models":
            route.fulfill(json={"data": [{"id": "translator"}, {"id": "tagger"}]})
        elif path == "v1/explain/translator":
            body = route.request.post_data_json
            page.asked.append(body)
            explanation = samples.explanation(seed=len(page.asked), **page.sample)
            explanation["options"]["parts"] = body["options"]["parts"]
            if body["options"]["ablate"]:
                explanation["baseline"] = {"output": {"text": "as it was"}, "loss": 0.1}
            route.fulfill(json=explanation)
        elif path == "v1/attention/translator":
            page.asked.append(route.request.post_data_json)
            route.fulfill(json={"weights": samples.stored(page.row)})
        else:
            route.fulfill(status=400, json={"error": {"message": f"no such model: {path}"}})

    page.route("**/*", answer)
    yield page
    context.close()


QUICK = ["attention", "lens", "next", "beam"]


def test_the_live_page_asks_the_server_and_switches_heads_off(live):
    live.goto(SERVER + "explore")
    live.fill("#text", "the old <b>cat</b>")
    live.press("#text", "Enter")
    live.wait_for_selector(".view-flow")
    assert live.asked == [{"text": "the old <b>cat</b>", "options": {"ablate": [], "parts": QUICK}}]
    live.click('nav a[data-view="attention"]')
    live.click(".thumb >> nth=0")
    live.click("text=Switch this head off")
    live.wait_for_selector("text=as it was")
    assert live.asked[-1]["options"]["ablate"] == ["decoder.layers.0.cross_attn.head.0"]
    with live.expect_response("**/v1/explain/*"):
        live.click("text=is off: switch on")
    live.wait_for_selector("text=as it was", state="detached")
    assert live.asked[-1]["options"]["ablate"] == []
    live.select_option("#model", "tagger")
    live.wait_for_selector("[role=alert]:visible")
    assert live.inner_text("[role=alert]") == "no such model: v1/explain/tagger"
    assert live.problems == []


@pytest.mark.full
def test_the_live_page_shows_the_exact_row_of_a_pooled_map(live):
    live.sample = {"kind": "decoder", "n_target": 1000, "layers": 1}
    live.row = np.random.default_rng(0).dirichlet(np.ones(1000), 4)
    live.goto(SERVER + "explore#view=attention&text=hello&head=2&query=3")
    live.wait_for_selector(".exact-bars")
    asked = live.asked[-1]
    assert (asked["attention"], asked["query"], len(asked["target_ids"])) == ("decoder.layers.0.self_attn", 12, 1000)
    shown = [number(text) for text in live.locator(".exact-bars .bar-value").all_text_contents()]
    np.testing.assert_allclose(shown, np.sort(live.row[2])[::-1][:8], atol=1e-4)
    assert "sum to 1.000" in live.inner_text(".exact")
    with live.expect_response("**/v1/attention/*"):
        live.click('.exact [data-place="3"]')
    assert live.asked[-1]["query"] == 15
    live.select_option("select >> nth=2", "mean")
    live.wait_for_function("document.querySelector('.exact-bars')")
    assert live.problems == []


@pytest.mark.full
def test_a_link_to_the_live_page_asks_again(live):
    live.goto(SERVER + "explore#view=next&model=translator&text=hello&temperature=0.5")
    live.wait_for_selector(".view-next")
    assert live.asked == [{"text": "hello", "options": {"ablate": [], "parts": QUICK, "temperature": 0.5}}]
    assert live.input_value("#text") == "hello"


@pytest.mark.full
def test_the_live_page_asks_for_slow_parts_only_when_their_view_is_opened(live):
    live.goto(SERVER + "explore#view=flow&text=hello")
    live.wait_for_selector(".view-flow")
    with live.expect_response("**/v1/explain/*"):
        live.click('nav a[data-view="why"]')
    assert live.asked[-1]["options"]["parts"] == [*QUICK, "attribution", "ablation"]
    with live.expect_response("**/v1/explain/*"):
        live.click('nav a[data-view="health"]')
    assert live.asked[-1]["options"]["parts"] == [*QUICK, "health"]
    assert live.problems == []


@pytest.mark.full
def test_the_live_page_asks_for_the_api_key(live):
    live.key = "secret"
    live.goto(SERVER + "explore")
    live.fill("#key", "secret")
    live.press("#key", "Enter")
    live.wait_for_selector("#text")
