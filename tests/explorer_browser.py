"""What the tests of the explorer do in a browser."""

import shutil
from importlib.resources import files

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VIEWS = ["flow", "tokenization", "positions", "attention", "head", "lens", "next", "why", "learning", "health"]
SIZES = {"phone": (390, 844), "laptop": (1280, 800), "4K": (3840, 2160)}


def is_external(url):
    return not url.startswith(("file:", "data:", "blob:", "about:"))


def go(page, view):
    page.click(f'nav a[data-view="{view}"]')
    page.wait_for_selector(f".view-{view}")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def number(text):
    return float(text.replace("\N{MINUS SIGN}", "-").replace("\u202f", "").split()[0])


def numbers(page, selector):
    return [number(text) for text in page.locator(selector).all_text_contents()]


def serious_violations(page):
    script = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    page.evaluate(script + "; undefined")
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        (one["id"], node["html"][:200])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]
