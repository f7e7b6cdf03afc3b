"""Write the pictures of docs/explorer.md: every view of the explorer, drawn by Chromium.

    python tools/explorer_screenshots.py                   trains a small translator first, which takes minutes
    python tools/explorer_screenshots.py --model FOLDER --text "..."

Needs Chromium and the packages of `make install`.
"""

import argparse
import itertools
import random
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import glassformer as gf
from glassformer.inspect.page_file import write_page_file

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "explorer"
WORK = ROOT / "build" / "explorer"
TEXT = "the old cat sees the big dog"
VIEWS = {
    "flow": "view=flow&open-decoder=0&block=decoder.0.cross",
    "tokenization": "view=tokenization",
    "positions": "view=positions",
    "attention": "view=attention&attention=decoder-cross&layer=1&head=mean&query=2",
    "lines": "view=attention&attention=decoder-cross&layer=1&head=0&query=2&as=lines",
    "head": "view=head&attention=decoder-cross&layer=1&head=0&query=2",
    "lens": "view=lens",
    "next": "view=next&place=1&temperature=1.5&top_p=0.95",
    "why": "view=why",
    "learning": "view=learning&checkpoint=1",
    "health": "view=health",
}
NOUNS = {"cat": "f Katze", "dog": "m Hund", "horse": "n Pferd", "mouse": "f Maus", "bird": "m Vogel", "fox": "m Fuchs"}
ADJECTIVES = {"old": "alt", "big": "gross", "small": "klein", "white": "weiss", "tired": "müd", "young": "jung"}
VERBS = {"sees": "sieht", "hears": "hört", "follows": "verfolgt", "likes": "mag"}


def translation_pairs() -> list[tuple[str, str]]:
    """Return sentences such as "the old cat sees the dog" with their translations, in a random order."""

    def phrases(articles: dict[str, str], ending: str) -> list[tuple[str, str]]:
        found = []
        for noun, adjective in itertools.product(NOUNS, [None, *ADJECTIVES]):
            gender, german = NOUNS[noun].split()
            changed = "" if adjective is None else ADJECTIVES[adjective] + (ending if gender == "m" else "e") + " "
            english = f"the {noun}" if adjective is None else f"the {adjective} {noun}"
            found.append((english, f"{articles[gender]} {changed}{german}"))
        return found

    subjects = phrases({"f": "die", "m": "der", "n": "das"}, "e")
    objects = phrases({"f": "die", "m": "den", "n": "das"}, "en")
    pairs = [
        (f"{subject[0]} {verb} {object_[0]}", f"{subject[1]} {VERBS[verb]} {object_[1]}")
        for subject, verb, object_ in itertools.product(subjects, VERBS, objects)
    ]
    random.Random(0).shuffle(pairs)
    return pairs


def train_translator(folder: Path) -> Path:
    """Train a translator of 2 + 2 layers on 6,000 of the sentences, and keep its checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, pairs in {"train": translation_pairs()[:6000], "valid": translation_pairs()[6000:6100]}.items():
        for side, language in enumerate(("en", "de")):
            path = files[split, language] = folder / f"{split}.{language}"
            path.write_text("\n".join(pair[side] for pair in pairs) + "\n", encoding="utf-8")
    model = folder / "translator"
    gf.train(
        "translation",
        source=files["train", "en"],
        target=files["train", "de"],
        valid_source=files["valid", "en"],
        valid_target=files["valid", "de"],
        out=model,
        n_encoder_layers=2,
        n_decoder_layers=2,
        d_model=64,
        d_ff=128,
        n_heads=4,
        vocab_size=400,
        norm_placement="pre",
        positions="sinusoidal",
        max_tokens=1000,
        updates=400,
        warmup=100,
        lr=0.003,
        eval_every=100,
        save_every=40,
        keep_last=12,
    )
    return model


def take_pictures(page_file: Path, out: Path) -> None:
    """Draw every view on a laptop, one on a phone in dark colors."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        laptop = browser.new_page(viewport={"width": 1180, "height": 860})
        for name, fragment in VIEWS.items():
            take(laptop, page_file, fragment, out / f"{name}.png")
        phone = browser.new_page(viewport={"width": 390, "height": 1500}, color_scheme="dark")
        take(phone, page_file, VIEWS["attention"], out / "phone.png", most=1500)
        browser.close()


def take(page: Any, page_file: Path, fragment: str, path: Path, most: int = 1250) -> None:
    """Save the top of one view, with a palette of 128 colors: a quarter of the size."""
    page.goto("about:blank")
    page.goto(f"{page_file.as_uri()}#{fragment}")
    page.wait_for_selector("#view-title")
    page.wait_for_timeout(400)
    height = min(most, page.evaluate("document.documentElement.scrollHeight"))
    width = page.viewport_size["width"]
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def main() -> None:
    """Train if no model is given, explain the text and draw the views."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a trained model; without it, a small translator is trained")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    model = arguments.model or WORK / "translator"
    if arguments.model is None and not model.exists():
        train_translator(WORK)
    explained = gf.explain(
        gf.load(model), arguments.text, name=model.name, run=model.with_name(model.name + ".run"), beam=3
    )
    WORK.mkdir(parents=True, exist_ok=True)
    page_file = WORK / "page.html"
    write_page_file(page_file, explained.data)
    take_pictures(page_file, arguments.out)
    for path in sorted(arguments.out.glob("*.png")):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
