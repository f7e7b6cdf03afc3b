"""The demo, on a small wheel made here: the tests fetch nothing."""

import hashlib
import json
import random
import re
import subprocess
import sys
import zipfile

import pytest

from glassformer.cli.demo import demo
from glassformer.data.corpora import catalog as corpora

WORDS = {
    "light": "licht",
    "door": "tür",
    "open": "offen",
    "closed": "zu",
    "lamp": "lampe",
    "not": "nicht",
    "and": "und",
}
HELP_ALONE = """
import sys
from glassformer.cli import main
sys.argv = ["glassformer", "--help"]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


def glassformer(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "glassformer", *arguments], capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Some hundred strings of seven words, translated word by word."""
    chance = random.Random(0)
    english = {str(key): " ".join(chance.choices(list(WORDS), k=chance.randint(2, 6))) for key in range(300)}
    german = {key: " ".join(WORDS[word] for word in text.split()) for key, text in english.items()}
    path = tmp_path / corpora.INTERFACE_WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        for language, texts in (("en", english), ("de", german), ("xx", {"1": "eks iks"})):
            archive.writestr(f"pkg/components/lamp/translations/{language}.json", json.dumps(texts))
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(corpora, "INTERFACE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())


def test_the_demo_trains_scores_translates_and_writes_a_page(wheel, tmp_path, capsys):
    demo(("the <b>light</b>",), minutes=0.05, out=tmp_path / "demo")
    told = capsys.readouterr()
    assert re.search(r"test: BLEU [\d.]+, chrF [\d.]+ \(beam 4, \d+ test pairs of interface-texts", told.out)
    assert re.search(r"validation after \d+ updates \(greedy, \d+ validation pairs of interface-texts\): ", told.err)
    assert "the <b>light</b>" in told.out
    assert "about" in told.err
    assert "estimated" in told.err
    page = (tmp_path / "demo" / "en-de.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;light" in page
    assert "<dt>test BLEU</dt>" in page
    assert re.search(r"finished model: beam 4, \d+ test pairs of interface-texts\. The validation scores", page)
    assert re.search(r"while it learned: greedy, \d+ validation pairs of interface-texts\.", page)
    demo(minutes=0.05, out=tmp_path / "demo")
    assert "trained already" in capsys.readouterr().out


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_no_time_at_all_is_refused(minutes, tmp_path):
    with pytest.raises(ValueError, match=rf"--minutes {minutes:g}: expected more than 0"):
        demo(minutes=minutes, out=tmp_path / "demo")


def test_a_language_it_does_not_have_is_refused_before_any_work(wheel, tmp_path):
    with pytest.raises(ValueError, match="no language 'tlh': expected one of"):
        demo(to="tlh", out=tmp_path / "demo")
    with pytest.raises(ValueError, match="no pairs are left for validation"):
        demo(to="xx", out=tmp_path / "demo")
    assert not (tmp_path / "demo" / "en-xx").exists()


def test_help_teaches_without_loading_torch():
    result = glassformer("demo", "--help")
    assert result.returncode == 0
    assert "The language to translate into" in result.stdout
    result = subprocess.run([sys.executable, "-c", HELP_ALONE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_wrong_usage_is_told_in_a_line(tmp_path):
    assert glassformer("demo", "--stepz", "3").returncode == 2
    assert glassformer("dmeo").returncode == 2
    result = glassformer("run", str(tmp_path / "nowhere"))
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1
