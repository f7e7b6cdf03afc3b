"""Chromium, and the explorer's pages in it."""

import pytest

from explorer_browser import CHROMIUM, SIZES, is_external
from glassformer.inspect.page_file import write_page_file


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs Chromium: `make test-browser` installs it")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """Opens explanations as files; what went wrong in the browser is in `page.problems`."""
    folder, contexts = tmp_path_factory.mktemp("pages"), {}

    def opened(explanation, fragment="", size="laptop", scheme="light"):
        if (size, scheme) not in contexts:
            width, height = SIZES[size]
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = contexts[size, scheme] = context.new_page()
            page.problems = []
            page.on("pageerror", lambda error: page.problems.append(str(error)))
            page.on("console", lambda line: page.problems.append(line.text) if line.type == "error" else None)
            page.on("request", lambda one: page.problems.append(one.url) if is_external(one.url) else None)
            page.on("dialog", lambda dialog: (page.problems.append(dialog.message), dialog.dismiss()))
        page = contexts[size, scheme]
        page.problems.clear()
        path = folder / f"{len(list(folder.iterdir()))}.html"
        write_page_file(path, explanation)
        page.goto("about:blank")
        page.goto(f"{path.as_uri()}#{fragment}")
        page.wait_for_selector("#view-title, #main .message")
        return page

    return opened
