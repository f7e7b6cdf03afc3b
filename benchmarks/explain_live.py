"""Measure how soon the live explorer shows new numbers after a change, for models of 10 million parameters.

    python benchmarks/explain_live.py benchmarks/results/explain-live.json

Starts `glassformer explain MODEL --live` for a random encoder-decoder (6 + 6 layers) and a random decoder (10 layers),
opens the page in Chromium at a text of about 30 tokens, and changes it there: another word, a head off, a head on,
another temperature, and a text drawn at random. A time is from the change to the second picture that the browser draws
with the new numbers. Processor time is that of the server and of all processes of the browser, user and system.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from playwright.sync_api import sync_playwright

from glassformer.bench.result_file import check_new, markdown_table, write_result
from glassformer.decoding import GenerationConfig
from glassformer.models import DecoderModel, EncoderDecoderModel
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.translator import Translator
from glassformer.tasks.configs.small_models import small_decoder, small_encoder_decoder
from glassformer.text import Tokenizer

COLUMNS = ["model", "change", "median, s", "slowest, s", "server, CPU s", "browser, CPU s", "answer, MB"]
N_WORDS = 26
LONGEST_WAIT = 60_000
"""The most milliseconds of one change."""
IN_PAGE = """
(act) => new Promise((done, fail) => {
  const status = document.getElementById("status");
  const before = document.body.innerText;
  const start = performance.now();
  const finish = () => requestAnimationFrame(() => requestAnimationFrame(() => {
    const time = performance.now() - start;
    const answers = performance.getEntriesByType("resource").filter((one) => one.name.includes("/v1/explain/"));
    performance.clearResourceTimings();
    const bytes = answers.reduce((sum, one) => sum + one.decodedBodySize, 0);
    done({ time, bytes, changed: document.body.innerText !== before });
  }));
  const observer = new MutationObserver(() => {
    if (status.textContent !== "The explanation has been updated.") return;
    observer.disconnect();
    finish();
  });
  const failure = () => document.querySelector("[role=alert]")?.textContent || "no new numbers";
  setTimeout(() => fail(new Error(failure())), LONGEST_WAIT);
  const click = (text) => {
    const button = [...document.querySelectorAll("button")].find((one) => one.textContent.startsWith(text));
    if (!button) throw new Error(`the page has no button "${text}"`);
    button.click();
  };
  if (act.kind !== "slider") observer.observe(status, { childList: true, characterData: true, subtree: true });
  if (act.kind === "text") {
    const text = document.getElementById("text");
    text.value = act.value;
    text.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  } else if (act.kind === "button") click(act.value);
  else {
    const slider = document.querySelector("input[type=range]");
    slider.value = act.value;
    slider.dispatchEvent(new Event("input"));
    finish();
  }
})
""".replace("LONGEST_WAIT", str(LONGEST_WAIT))
"""Makes one change in the page and waits for its numbers. `act` has a kind (text, button or slider) and a value."""


class Change(NamedTuple):
    """One change in the page, as measured."""

    name: str
    seconds: float
    server: float
    """Processor seconds of the server."""
    browser: float
    megabytes: float


def save_models(folder: Path, *, is_tiny: bool) -> tuple[dict[str, Path], list[str]]:
    """Write the random models, and return their folders by name, and the words that their tokenizer knows."""
    torch.manual_seed(0)
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 8))) for _ in range(4000)]
    texts = [" ".join(chance.choices(words, k=12)) for _ in range(3000)]
    tokenizer = Tokenizer.train(texts, 400 if is_tiny else 8000)
    size: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "n_heads": 8, "max_len": 512}
    wide = {"d_model": 32, "d_ff": 64} if is_tiny else {"d_model": 240, "d_ff": 720}
    layers = {"n_encoder_layers": 6, "n_decoder_layers": 6}
    both = EncoderDecoderModel(small_encoder_decoder(**size, **wide, **layers)).eval()
    wide = {"d_model": 32, "d_ff": 64} if is_tiny else {"d_model": 256, "d_ff": 680}
    decoder = DecoderModel(small_decoder(**size, **wide, n_decoder_layers=10)).eval()
    pipelines: dict[str, Any] = {
        "encoder-decoder": Translator(both, tokenizer, tokenizer, GenerationConfig(num_beams=4, max_new_tokens=64)),
        "decoder": LanguageModel(decoder, tokenizer, GenerationConfig(max_new_tokens=64)),
    }
    found = {}
    for kind, pipe in pipelines.items():
        found[f"{kind}, {pipe.model.n_parameters() / 1e6:.1f} M"] = folder / kind
        pipe.save(folder / kind, "A random model.")
    known = [word for word in words if len(tokenizer.encode(word)) <= 2]
    return found, known or words


@contextmanager
def live_server(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a model with `explain --live`; yield the address of the page and the id of the process."""
    command = [sys.executable, "-m", "glassformer", "explain", str(folder), "--live", "--port", "0", "--device", "cpu"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if " at http" in line:
                break
        else:
            raise RuntimeError("the server ended before it was ready")
        yield line.rsplit(" at ", 1)[1].strip(), server.pid
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        if server.stdout is not None:
            server.stdout.close()


def processor_seconds(server: int) -> tuple[float, float]:
    """Return the processor seconds of the server, and of all other processes that this one has started."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        pid = int(entry.name)
        parents[pid], used[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    ticks = os.sysconf("SC_CLK_TCK")
    others = [pid for pid in used if pid != server and _is_below(pid, parents)]
    return used.get(server, 0) / ticks, sum(used[pid] for pid in others) / ticks


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def measure(page: Any, url: str, server: int, words: Sequence[str], repeats: int) -> list[Change]:
    """Open the live page and return the changes that were made in it."""
    chance = random.Random(1)
    text = chance.choices(words, k=N_WORDS)
    found: list[Change] = []

    def change(name: str, kind: str, value: str) -> None:
        before = processor_seconds(server)
        result = page.evaluate(IN_PAGE, {"kind": kind, "value": value})
        after = processor_seconds(server)
        if not result["changed"]:
            raise RuntimeError(f"{name}: the page shows what it showed before")
        used = [end - start for start, end in zip(before, after, strict=True)]
        found.append(Change(name, result["time"] / 1000, used[0], used[1], result["bytes"] / 1e6))

    page.goto(f"{url}#view=attention&layer=1&head=0")
    page.wait_for_selector("#text")
    for n in range(repeats + 1):  # the first is for warming up
        text[n % N_WORDS] = chance.choice([word for word in words if word != text[n % N_WORDS]])
        change("edit a word", "text", " ".join(text))
        change("switch a head off", "button", "Switch this head off")
        change("switch it on again", "button", "Switch this head on")
    page.click('nav a[data-view="next"]')
    page.wait_for_selector(".view-next input[type=range]")
    for n in range(repeats + 1):
        change("move the temperature", "slider", f"{0.5 + 0.1 * n:.1f}")
        change("draw a text at that temperature", "button", "Write again")
    return found


def summary(model: str, changes: Sequence[Change]) -> list[list[str | float]]:
    """Return a row for each kind of change, without the first of each kind, which warms up."""
    rows: list[list[str | float]] = []
    for name in dict.fromkeys(one.name for one in changes):
        some = [one for one in changes if one.name == name][1:]
        times = [one.seconds for one in some]
        means = [statistics.median(values) for values in zip(*(one[2:] for one in some), strict=True)]
        rows.append([model, name, f"{statistics.median(times):.2f}", f"{max(times):.2f}", *(f"{x:.2f}" for x in means)])
    return rows


def main() -> None:
    """Measure both models and print the table; write the result file if the command line names one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="new file of results")
    parser.add_argument("--repeats", type=int, default=5, help="how often each change is measured")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the program")
    given = parser.parse_args()
    if given.out is not None:
        check_new(given.out)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    rows: list[list[str | float]] = []
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        models, words = save_models(Path(work), is_tiny=given.tiny)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, folder in models.items():
            with live_server(folder) as (url, server):
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.set_default_timeout(LONGEST_WAIT)
                changes = measure(page, url, server, words, given.repeats)
                page.close()
            rows += summary(name, changes)
            for row in rows[-5:]:
                print(*row, sep="\t", flush=True)
        browser.close()
    if given.out is not None:
        write_result(given.out, title="The live explorer", columns=COLUMNS, rows=rows)
    print(markdown_table(COLUMNS, rows))


if __name__ == "__main__":
    main()
