"""Measure how exactly `glassformer train --minutes` is kept: `python tools/time_minutes.py [MINUTES]`.

The script trains ten small models on generated data, with different tasks, sizes and intervals of validation, and times
each command as a whole. It prints the seconds asked for and taken, and exits with 1 if one run fails or is off by more
than 15 %. Run it on an idle machine.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = {
    "light": "licht",
    "door": "tür",
    "open": "offen",
    "closed": "zu",
    "lamp": "lampe",
    "not": "nicht",
    "and": "und",
    "green": "grün",
    "old": "alt",
    "house": "haus",
}
TRANSLATION = ["translation", "--source", "a.en", "--target", "a.de"]
CLASSIFICATION = ["classification", "--data", "a.csv"]
LANGUAGE = ["language", "--data", "a.txt"]
SMALL = ["--d-model", "64", "--d-ff", "128", "--max-tokens", "1024"]
RUNS = (
    TRANSLATION,
    [*TRANSLATION, *SMALL],
    [*TRANSLATION, *SMALL, "--eval-every", "50", "--save-every", "50"],
    [*TRANSLATION, *SMALL, "--eval-every", "100000"],
    [*TRANSLATION, "--optimizer", "muon", "--schedule", "linear"],
    CLASSIFICATION,
    [*CLASSIFICATION, *SMALL, "--schedule", "cosine"],
    [*CLASSIFICATION, *SMALL, "--eval-every", "20"],
    LANGUAGE,
    [*LANGUAGE, "--max-tokens", "1024"],
)
ALLOWED = 0.15


def main(minutes: float) -> int:
    """Run the ten commands. Return how many failed or were off by more than 15 %."""
    late = 0
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        print("asked s  taken s    off  command")
        for number, arguments in enumerate(RUNS):
            command = [sys.executable, "-m", "glassformer", "train", *arguments]
            began = time.perf_counter()
            options = ["--out", f"model-{number}", "--minutes", f"{minutes:g}"]
            result = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, check=False)
            taken, asked = time.perf_counter() - began, 60 * minutes
            off = taken / asked - 1
            late += abs(off) > ALLOWED or result.returncode != 0
            print(f"{asked:7.1f}  {taken:7.1f}  {off:+5.0%}  train {' '.join(arguments)}", flush=True)
            if result.returncode:
                print(result.stderr[-1000:], file=sys.stderr)
    print(f"{len(RUNS) - late} of {len(RUNS)} within {ALLOWED:.0%}")
    return late


def write_data(folder: Path) -> None:
    """Write the generated training data: sentence pairs, labeled texts and one long text."""
    draw = random.Random(0)
    lines = [draw.choices([*WORDS], k=draw.randint(3, 15)) for _ in range(8000)]
    (folder / "a.en").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
    translated = ([WORDS[word] for word in line] for line in lines)
    (folder / "a.de").write_text("".join(" ".join(line) + "\n" for line in translated), encoding="utf-8")
    rows = (f"{' '.join(line)},{'yes' if 'not' not in line else 'no'}\n" for line in lines)
    (folder / "a.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    (folder / "a.txt").write_text(" ".join(word for line in lines for word in line), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(1 if main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0) else 0)
