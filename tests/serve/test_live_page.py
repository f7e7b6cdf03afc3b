"""The page at `/`, in a real browser where there is one."""

import re
import shutil

import pytest

from glassformer.serve.live_page import PAGE, SECURITY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_the_page_is_one_file_without_external_requests(server):
    status, headers, text = server.ask("/")
    assert status == 200
    assert text == PAGE
    assert headers["Content-Security-Policy"] == SECURITY["Content-Security-Policy"]
    assert not re.search(r"https?://|src=|@import|url\(|innerHTML|insertAdjacentHTML|eval\(", PAGE)
    assert 'name="viewport"' in PAGE


def test_the_page_asks_for_addresses_that_exist(server):
    paths = server.ask("/openapi.json")[2]["paths"]
    asked = {*re.findall(r'fetch\("(v1/[a-z/]+)"', PAGE)}
    assert asked == {"v1/models", "v1/chat/completions", "v1/completions", "v1/tasks/"}
    for path in asked - {"v1/tasks/"}:
        assert f"/{path}" in paths


@pytest.fixture(scope="module")
def page(server):
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        found = browser.new_page(viewport={"width": 390, "height": 800})  # a phone
        found.problems = []
        found.on("pageerror", lambda error: found.problems.append(str(error)))
        found.on("console", lambda line: found.problems.append(line.text) if line.type == "error" else None)
        found.goto(server.url)
        found.wait_for_selector("#model option", state="attached")
        found.evaluate("document.querySelector('details').open = true")  # the settings
        yield found
        browser.close()


def send(page, text):
    page.fill("#text", text)
    page.press("#text", "Enter")
    page.wait_for_selector("#send", state="visible")


def test_a_conversation_has_several_turns_and_shows_probabilities(page):
    page.problems.clear()
    page.select_option("#model", "chat")
    page.click("#reset")
    page.fill("#max_tokens", "5")
    page.fill("#temperature", "0")
    send(page, "hi <b>there</b>")
    send(page, "and again")
    page.wait_for_selector(".message >> nth=3")
    assert page.inner_text(".message.user >> nth=0") == "hi <b>there</b>"
    assert page.evaluate("messages.map((one) => one.role).join()") == "user,assistant,user,assistant"
    assert page.evaluate("document.querySelectorAll('.message.assistant')[0].querySelectorAll('.token').length") == 5
    assert re.search(r"\d %", page.get_attribute(".token >> nth=0", "title"))
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "a phone needs no sideways scrolling"
    assert page.problems == []


def test_an_answer_can_be_stopped(page, server):
    page.select_option("#model", "chat")
    page.click("#reset")
    page.fill("#max_tokens", "480")
    page.fill("#text", "hi")
    page.press("#text", "Enter")
    page.click("#stop")
    page.wait_for_selector("#send", state="visible")
    server.wait_until_idle()
    page.fill("#max_tokens", "5")


def test_a_task_has_its_form(page):
    page.problems.clear()
    page.select_option("#model", "classifier")
    send(page, "the cat")
    page.wait_for_selector(".message table")
    assert page.inner_text(".message.assistant").startswith(("animal", "place", "tool"))
    assert page.problems == []


def test_a_tapped_word_shows_what_else_was_likely(page):
    page.problems.clear()
    page.select_option("#model", "chat")
    page.click("#reset")
    assert "tap it" in page.inner_text(".hint")
    page.fill("#max_tokens", "3")
    page.fill("#temperature", "0")
    send(page, "hi")
    page.click(".token >> nth=1")
    rows = page.locator(".alternatives tbody tr")
    assert rows.count() >= 5
    assert re.search(r"\d\.\d %", rows.nth(0).inner_text())
    page.click(".token >> nth=1")
    assert page.locator(".alternatives").count() == 0
    assert page.locator(".hint").count() == 0
    assert page.problems == []


def test_tokens_without_width_can_be_tapped(page):
    """Tokens of a control character, and of the first byte of a character, have a symbol."""
    page.select_option("#model", "chat")
    page.click("#reset")
    page.evaluate(
        """() => {
            const box = add("assistant"), decoder = new TextDecoder();
            for (const bytes of [[0], [0x1b], [0x7f], [0xc3], [0xa9]])
                addToken(box, decoder, { token: "one", bytes, logprob: -1 });
        }"""
    )
    tokens = page.locator(".token")
    assert tokens.all_inner_texts() == ["␀", "␛", "␡", "", "é"]
    for index in range(tokens.count()):
        tokens.nth(index).click(timeout=2000)
        assert page.locator(".alternatives tbody tr").count() == 1
    page.click("#reset")


def test_an_error_is_shown_in_a_sentence(page):
    page.select_option("#model", "extractor")
    send(page, "no tab")
    page.wait_for_selector(".message.error")
    assert "expected a question, a tab and a text" in page.inner_text(".message.error")
