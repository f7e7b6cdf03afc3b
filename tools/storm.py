"""Stress test of training, loading and the command line, in six parts: `make storm`.

Each part prints how many cases it ran and how many went wrong. The exit code is 1 if any did.

- kills, signals: training runs are stopped at random moments and resumed. The final weights must have the same bits as
  those of an uninterrupted run, and a signal must give its exit code.
- full disk: a random limit on file sizes makes a save fail. The run must end with a one-line error, and resume.
- damaged files: models of every format with random damage (`make fuzz` runs more of them).
- environments: the commands under odd variables, closed streams, odd names. The answer must be right, or the error one
  line with exit code 1 or 2, and never a traceback.
- texts: random Unicode lines. The tokenizer must give each back, and `run` must print one line for each.
"""

import argparse
import contextlib
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

import fuzz

from checkpoint import hostile_files
from glassformer.pipelines.load import load
from glassformer.pipelines.translator import Translator

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
SMALL = "--vocab-size 300 --d-model 32 --n-heads 4 --d-ff 32 --n-encoder-layers 1 --n-decoder-layers 1 --max-len 32"
SHORT = "--updates 40 --warmup 5 --max-tokens 256 --eval-every 10 --save-every 5 --keep-last 2 --device cpu"
TRAIN = ["train", "translation", "--source", "a.en", "--target", "a.de", "--out", "m", *SMALL.split(), *SHORT.split()]
ALLOWED_EXITS = {0, 1, 2, 141}


@dataclass
class Part:
    """The results of one part of the test: how many cases it ran, and a message for each fault."""

    name: str
    cases: int = 0
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    notes: str = ""


def _log_of(folder: Path) -> str:
    """Return everything that commands started by `start` in this folder have printed."""
    return (folder / "log.txt").read_text(encoding="utf-8", errors="replace")


def write_corpus(folder: Path, count: int = 300) -> None:
    """Write a corpus of `count` random sentence pairs, of six words that are translated word by word."""
    chance = random.Random(0)
    sources = [" ".join(chance.choices(list(WORDS), k=chance.randint(1, 4))) for _ in range(count)]
    (folder / "a.en").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    lines = (" ".join(WORDS[word] for word in line.split()) for line in sources)
    (folder / "a.de").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def start(arguments: list[str], folder: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Start `glassformer ARGUMENTS` in a forked child process and return the child's id.

    The child works in `folder`, writes its output to log.txt, and calls `prepare` first. A fork saves the time of
    importing torch again.
    """
    child = os.fork()
    if child:
        return child
    try:
        os.chdir(folder)
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        prepare()
        sys.argv = ["glassformer", *arguments]
        from glassformer.cli import main

        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def wait(child: int) -> int:
    """Wait for a child process and return its exit code, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def weights(folder: Path) -> str:
    """Return a hash of the weights and the tokenizer of the model that was trained in this folder."""
    digest = hashlib.sha256()
    for name in ("model.safetensors", "tokenizer.json"):
        digest.update((folder / "m" / name).read_bytes())
    return digest.hexdigest()


def fresh(root: Path, name: str) -> Path:
    """Make the new folder `root/name` with the corpus in it, and return its path."""
    folder = root / name
    folder.mkdir()
    write_corpus(folder)
    return folder


def leftovers(folder: Path) -> list[str]:
    """Return the hidden files in the folder: temporary files that a finished run should have removed."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".*") if path.name.startswith(".")]


def interrupt(part: Part, root: Path, deadline: float, chance: random.Random, signals: list[signal.Signals]) -> None:
    """Stop training runs at random moments by one of the signals, and resume them until they finish.

    The final weights must be those of an uninterrupted run. Until `deadline`, cases and faults are added to `part`.
    """
    whole = fresh(root, "whole")
    began = time.monotonic()
    if wait(start(TRAIN, whole)) != 0:
        part.faults.append(f"the undisturbed run failed: {_log_of(whole)[-500:]}")
        return
    span, right, number, finished = time.monotonic() - began, weights(whole), 0, 0
    while time.monotonic() < deadline:
        folder = fresh(root, f"run-{number}")
        number += 1
        code: int | None = None
        while code != 0 and time.monotonic() < deadline + 60:
            child = start(TRAIN, folder)
            time.sleep(chance.random() * span * 1.2)
            chosen = chance.choice(signals)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, chosen)
            if chosen != signal.SIGKILL and chance.random() < 0.2:  # an impatient user sends it twice
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, chosen)
            code = wait(child)
            part.cases += 1
            wanted = {0, -chosen} if chosen == signal.SIGKILL else {0, 128 + chosen, -chosen}
            if code not in wanted:
                part.faults.append(f"exit {code} after {chosen.name}: {_log_of(folder)[-500:]}")
                break
        if code == 0:
            finished += 1
            if weights(folder) != right:
                part.faults.append(f"run {number}: other weights than the undisturbed run")
            if found := leftovers(folder):
                part.faults.append(f"run {number} left {found}")
        shutil.rmtree(folder)
    shutil.rmtree(whole)
    part.notes = f"{finished} runs finished with the same bits"


def fill_disk(part: Part, root: Path, deadline: float, chance: random.Random) -> None:
    """Train with a random limit on the size of files, so that a save fails as on a full disk, and resume without it.

    The run must end without a traceback, and the resumed run must reach the weights of an undisturbed one.
    """
    whole = fresh(root, "whole")
    wait(start(TRAIN, whole))
    right = weights(whole)
    while time.monotonic() < deadline:
        folder = fresh(root, f"full-{part.cases}")
        size = int(10 ** chance.uniform(1, 5.3))

        def limit(size: int = size) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

        code = wait(start(TRAIN, folder, limit))
        told = _log_of(folder)
        part.cases += 1
        if code not in (0, 1) or "Traceback" in told:
            part.faults.append(f"exit {code} with files of at most {size} bytes: {told[-500:]}")
        elif wait(start(TRAIN, folder)) != 0 or weights(folder) != right:
            part.faults.append(f"no right resume after files of at most {size} bytes")
        shutil.rmtree(folder)
    shutil.rmtree(whole)


def damage(part: Part, root: Path, deadline: float, chance: random.Random) -> None:
    """Load models of every format with random damage, by the cases of `tools/fuzz.py`, until `deadline`."""
    paths = hostile_files.build_models(root)
    (root / "broken").mkdir()
    for path in paths.values():
        hostile_files.use(load(path))
    while time.monotonic() < deadline:
        first = chance.randrange(10**9)
        for outcome in fuzz.outcomes(first, first + 100, paths, root / "broken"):
            part.cases += 1
            if outcome.violation:
                part.faults.append(f"case {outcome.case}, {outcome.kind}: {outcome.violation} after {outcome.deeds}")


def environments() -> Iterator[tuple[str, dict[str, str | None], str]]:
    """Yield the cases of `odd_environments`: a name, environment variables, and a shell command.

    A variable with the value None is removed. The command calls Glassformer as `$GF`.
    """
    plain = 'printf "one two\\nthree\\n" | $GF run m'
    for name, value in (
        *(("LC_ALL", value) for value in ("C", "POSIX", "tr_TR.UTF-8", "de_DE.ISO-8859-1", "nonsense")),
        *(("PYTHONIOENCODING", value) for value in ("ascii", "latin-1", "utf-16")),
        *(("TZ", value) for value in ("Asia/Kathmandu", "nonsense")),
        *(("HOME", value) for value in (None, "/nonexistent", "/dev/null")),
        *(("TERM", value) for value in ("dumb", "", None)),
        *(("COLUMNS", value) for value in ("1", "nonsense")),
        ("PYTHONUTF8", "0"),
        ("PYTHONOPTIMIZE", "2"),
        ("PYTHONHASHSEED", "1"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("XDG_CACHE_HOME", "/dev/null/cache"),
        ("TMPDIR", "/nonexistent"),
        ("NO_COLOR", "1"),
        ("OMP_NUM_THREADS", "3"),
        ("CXX", "/bin/false"),
    ):
        yield f"{name}={value}", {name: value}, plain
    yield "int8 without a home", {"HOME": "/nonexistent"}, 'printf "one two\\nthree\\n" | $GF run m --quantize int8'
    yield "int8 without a compiler", {"CXX": "/bin/false"}, 'printf "one two\\nthree\\n" | $GF run m --quantize int8'
    for name, command in (
        ("stdin closed", "$GF run m <&-"),
        ("stdout closed", 'printf "one two\\n" | $GF run m >&-'),
        ("stderr closed", 'printf "one two\\nthree\\n" | $GF run m 2>&-'),
        ("stdout full", 'printf "one two\\n" | $GF run m >/dev/full'),
        ("nobody reads", 'printf "one two\\n" | $GF run m | true; exit ${PIPESTATUS[1]}'),
        ("invalid UTF-8", 'printf "one \\377 two\\nthree\\n" | $GF run m'),
        ("NUL bytes", 'printf "one \\000 two\\nthree\\n" | $GF run m'),
        ("a byte-order mark", 'printf "\\357\\273\\277one two\\nthree\\n" | $GF run m'),
        ("no line end", 'printf "one two\\nthree" | $GF run m'),
        ("an empty input", 'printf "" | $GF run m'),
        ("a deleted folder", 'printf "one\\n" > in; d=$(mktemp -d); i=$PWD; cd $d; rmdir $d; $GF run $i/m <$i/in'),
        ("few open files", 'ulimit -n 40; printf "one two\\nthree\\n" | $GF run m'),
        ("a strict umask", 'umask 777; printf "one two\\nthree\\n" | $GF run m'),
        ("odd names", 'cp -r m "-- a\tb é"; printf "one two\\nthree\\n" | $GF run "./-- a\tb é"'),
        ("a missing model", "$GF run nothing </dev/null"),
        ("a file as a model", "$GF run a.en </dev/null"),
        ("an output in use by a file", "$GF train translation --source a.en --target a.de --out a.en"),
        ("an unknown flag", "$GF run m --nonsense </dev/null"),
    ):
        yield name, {}, command


def odd_environments(part: Part, root: Path, deadline: float) -> None:
    """Run the command of each case of `environments`, and add to `part` those with a wrong answer or a traceback."""
    folder = fresh(root, "odd")
    if wait(start(TRAIN, folder)) != 0:
        part.faults.append("the training failed")
        return
    shutil.rmtree(folder / "m.run")
    expected = "\n".join(Translator.from_folder(folder / "m").run(["one two", "three"])) + "\n"
    usual = {**os.environ, "GF": f"{sys.executable} -m glassformer"}
    skipped, running = 0, []

    def finish(name: str, process: "subprocess.Popen[bytes]", command: str) -> None:
        out, err = (stream.decode("utf-8", "replace") for stream in process.communicate(timeout=300))
        part.cases += 1
        if "Traceback" in err or process.returncode not in ALLOWED_EXITS:
            part.faults.append(f"{name}: exit {process.returncode}: {err[-400:]}")
        elif process.returncode == 0 and command.startswith('printf "one two\\nthree\\n" |') and out != expected:
            part.faults.append(f"{name}: {out!r} instead of {expected!r}")
        elif process.returncode != 0 and not err.strip() and "closed" not in name and "nobody" not in name:
            part.faults.append(f"{name}: exit {process.returncode} without a word")

    for name, variables, command in environments():
        if time.monotonic() > deadline:
            skipped += 1
            continue
        environment = {key: value for key, value in {**usual, **variables}.items() if value is not None}
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        running.append((name, process, command))
        if len(running) == 2:
            finish(*running.pop(0))
    for one in running:
        finish(*one)
    part.notes = f"{skipped} skipped, the time was up" if skipped else ""


def odd_texts(part: Part, root: Path, deadline: float, chance: random.Random) -> None:
    """Encode and decode random Unicode lines with a tokenizer, and translate some of them with a model.

    Decoding must return the line, no line may become a special token, and each line must get an answer.
    """
    folder = fresh(root, "texts")
    if wait(start(TRAIN, folder)) != 0:
        part.faults.append("the training failed")
        return
    model = Translator.from_folder(folder / "m")
    model.truncate = True  # some lines are longer than the model reads
    tokenizer = model.source_tokenizer
    ranges = [(0x20, 0x7F), (0x80, 0x250), (0x300, 0x370), (0x590, 0x700), (0x2000, 0x2070), (0x3040, 0x3100)]
    ranges += [(0xE000, 0xE010), (0xFE00, 0xFE10), (0x1F300, 0x1F700), (0x0, 0x20)]
    special = ["<s>", "</s>", "<pad>", "<unk>", "<|endoftext|>", "one", "two"]
    while time.monotonic() < deadline:
        lines = []
        for _ in range(500):
            pieces = []
            for _ in range(chance.randint(0, 6)):
                low, high = chance.choice(ranges)
                letters = "".join(chr(chance.randrange(low, high)) for _ in range(chance.randint(1, 6)))
                pieces.append(chance.choice(special) if chance.random() < 0.3 else letters)
            lines.append(chance.choice(["", " "]).join(pieces))
        for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
            part.cases += 1
            if set(ids) & set(tokenizer.special_ids):
                part.faults.append(f"{line!r} became a special token")
            elif tokenizer.decode(ids) != tokenizer.normalize(line).removeprefix(" "):  # this one adds a space
                part.faults.append(f"{line!r} does not survive the tokenizer")
        if len(model.run(lines[:20], beam=1)) != 20:
            part.faults.append("a line without an answer")
    part.notes = "each line through the tokenizer, one in 25 through the model"


def main() -> int:
    """Run the parts one after the other, each for its share of --minutes, and print a table. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long in all (10)")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices (0)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    kill, stops = [signal.SIGKILL], [signal.SIGINT, signal.SIGTERM]
    parts: list[tuple[str, float, Callable[[Part, Path, float], None]]] = [
        ("kills", 0.25, lambda part, root, end: interrupt(part, root, end, chance, kill)),
        ("signals", 0.15, lambda part, root, end: interrupt(part, root, end, chance, stops)),
        ("full disk", 0.1, lambda part, root, end: fill_disk(part, root, end, chance)),
        ("damaged files", 0.15, lambda part, root, end: damage(part, root, end, chance)),
        ("environments", 0.3, odd_environments),
        ("texts", 0.05, lambda part, root, end: odd_texts(part, root, end, chance)),
    ]
    done = []
    for name, share, run in parts:
        part, began = Part(name), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="storm-") as root:
            run(part, Path(root), began + share * options.minutes * 60)
        part.seconds = time.monotonic() - began
        done.append(part)
        print(f"{name}: {part.cases:,} cases, {len(part.faults)} faults", file=sys.stderr, flush=True)
        for fault in part.faults[:10]:
            print(f"  {fault}", file=sys.stderr, flush=True)
    print(f"{'part':16}{'cases':>10}{'faults':>8}{'seconds':>9}  notes")
    for part in done:
        print(f"{part.name:16}{part.cases:>10,}{len(part.faults):>8}{part.seconds:>9.0f}  {part.notes}")
    return 1 if any(part.faults for part in done) else 0


if __name__ == "__main__":
    sys.exit(main())
