"""The page of raters, in a real browser where there is one, with a server in this process."""

import asyncio
import re
import shutil
import threading
import time
from importlib.resources import files

import pytest
import uvicorn

from glassformer.serve.http_server import HttpServer, open_socket
from glassformer.serve.rating_app import make_rating_app
from glassformer.serve.rating_session import RatingSession
from serve.served import Served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
INPUTS = ["one", "two", "three"]
OUTPUTS = {"secret-a": ["uno", "due", "tre"], "secret-b": ["un", "deux", "trois"]}


class Rated(Served):
    """A server for raters in a thread of this process; `ask` asks it."""

    def __init__(self, session):
        self.socket = open_socket("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        config = uvicorn.Config(make_rating_app(session), ws="none", log_config=None, timeout_keep_alive=1)
        self.server = HttpServer(config, lambda: None)
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve([self.socket])))
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)
        self.socket.close()


@pytest.fixture(params=["choice", "rating"])
def rated(request, tmp_path):
    session = RatingSession(INPUTS, OUTPUTS, tmp_path / "r.jsonl", request.param)
    found = Rated(session)
    found.session = session
    yield found
    found.stop()


def test_a_rater_answers_item_after_item_without_seeing_a_name(rated):
    status, _, now = rated.ask("/next?rater=ann")
    assert status == 200
    while now["item"] is not None:
        assert now["input"] == INPUTS[now["item"]]
        assert sorted(now["outputs"]) == sorted(texts[now["item"]] for texts in OUTPUTS.values())
        assert "secret" not in str(now)
        answer = 0 if now["mode"] == "choice" else [5, 1]
        status, _, now = rated.ask("/answer", {"rater": "ann", "item": now["item"], "answer": answer})
        assert status == 200
    assert now["done"] == now["total"] == 3
    assert len(rated.session.answers) == 3


def test_wrong_answers_are_refused_in_a_sentence(rated):
    for body in (
        {"rater": "ann", "item": 0, "answer": 9},
        {"rater": "ann", "item": 0, "answer": [9, 9]},
        {"rater": "ann", "item": 99, "answer": 0},
        {"rater": "", "item": 0, "answer": 0},
        {"rater": "ann"},
    ):
        status, _, found = rated.ask("/answer", body)
        assert status == 400
        assert found["error"]["message"]
    assert rated.ask("/next?rater=")[0] == 400
    assert not rated.session.answers


def test_the_page_makes_no_external_requests():
    page = files("glassformer.serve").joinpath("rating_page.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=|@import|url\(|innerHTML|insertAdjacentHTML|eval\(", page)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_rater_uses_mouse_and_keyboard(rated):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, problems = browser.new_page(), []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(rated.url)
        page.fill("#name", "ann")
        page.press("#name", "Enter")
        is_choice = rated.session.mode == "choice"
        for number in range(3):
            page.wait_for_selector(f"#progress >> text=Item {number + 1} of 3")
            if is_choice and number == 0:
                page.click("text=Better (2)")
            elif is_choice:
                page.keyboard.press("0" if number == 1 else "1")
            else:
                page.keyboard.press("4")
                page.click(".card >> nth=1 >> text=2") if number else page.keyboard.press("2")
                page.keyboard.press("Enter")
        page.wait_for_selector("#end", state="visible")
        browser.close()
    assert problems == []
    answers = {answer.item: answer for answer in rated.session.answers}
    assert len(answers) == 3
    if is_choice:
        assert sum(answer.choice is None for answer in answers.values()) == 1
    else:
        assert all(sorted(answer.ratings.values()) == [2, 4] for answer in answers.values())
