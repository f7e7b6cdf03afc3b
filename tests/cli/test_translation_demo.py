"""`glassformer demo translation`, on a small wheel of interface texts: the tests download nothing."""

import random
import re

import pytest

from cli.interface_wheel import use_wheel
from glassformer.cli.translation_demo import translation_demo
from glassformer.inspect.page_file import embedded_explanation
from glassformer.tasks.translation import Translation

WORDS = {
    "light": "licht",
    "door": "tür",
    "open": "offen",
    "closed": "zu",
    "lamp": "lampe",
    "not": "nicht",
    "and": "und",
}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Use a corpus of 300 strings made of seven words, translated word by word."""
    chance = random.Random(0)
    english = {str(key): " ".join(chance.choices(list(WORDS), k=chance.randint(2, 6))) for key in range(300)}
    german = {key: " ".join(WORDS[word] for word in text.split()) for key, text in english.items()}
    use_wheel(tmp_path, monkeypatch, {"en": english, "de": german, "xx": {"1": "eks iks"}})


def test_demo_trains_scores_translates_and_writes_a_page(wheel, tmp_path, capsys):
    translation_demo(("the <b>light</b>",), minutes=0.05, out=tmp_path / "demo")
    told = capsys.readouterr()
    assert re.search(r"test: BLEU [\d.]+, chrF [\d.]+ \(beam 4, \d+ test pairs of interface-texts", told.out)
    assert re.search(r"validation after \d+ updates \(greedy, \d+ validation pairs of interface-texts\): ", told.err)
    assert "the <b>light</b>" in told.out
    assert "about" in told.err
    assert "estimated" in told.err
    page = embedded_explanation((tmp_path / "demo" / "en-de.html").read_text(encoding="utf-8"))
    assert page["options"]["text"] == "the <b>light</b>"
    assert "English to German" in page["model"]["name"]
    assert page["learning"]["curve"][0]["update"]
    translation_demo(minutes=0.05, out=tmp_path / "demo")
    assert "trained already" in capsys.readouterr().out


def test_another_file_of_the_name_of_the_page_is_refused_before_training(wheel, tmp_path):
    (tmp_path / "en-de.html").write_text("<p>my notes</p>", encoding="utf-8")
    with pytest.raises(ValueError, match=r"en-de\.html exists and is not a page"):
        translation_demo(minutes=0.05, out=tmp_path)
    assert [*tmp_path.glob("en-de*")] == [tmp_path / "en-de.html"]


class StopError(Exception):
    pass


def test_the_options_of_computing_reach_training(monkeypatch, tmp_path):
    threads, seen = [], []

    def choose(given):
        seen.append(given)
        raise StopError

    monkeypatch.setattr(Translation, "with_chosen_defaults", choose)
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    for options in ({"device": "cpu", "precision": "bf16", "threads": 1}, {}):
        with pytest.raises(StopError):
            translation_demo(out=tmp_path, **options)
    assert [seen[0][f"train.{name}"] for name in ("device", "precision", "threads")] == ["cpu", "bf16", 1]
    assert "train.threads" not in seen[1]
    assert threads == [1]
    with pytest.raises(ValueError, match="--threads -1: expected 0 to 1,024"):
        translation_demo(out=tmp_path, threads=-1)


@pytest.mark.parametrize(("minutes", "is_short"), [(4.0, True), (30.0, False)])
def test_only_a_short_run_does_without_dropout(minutes, is_short, wheel, tmp_path, monkeypatch):
    given = {}

    def note(options):
        given.update(options)
        raise StopError

    monkeypatch.setattr(Translation, "with_chosen_defaults", note)
    with pytest.raises(StopError):
        translation_demo(minutes=minutes, out=tmp_path / "demo")
    assert given["model.positions"] == "rotary"
    assert ("model.dropout" in given) == is_short


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_minutes_must_be_positive(minutes, tmp_path):
    with pytest.raises(ValueError, match=rf"--minutes {minutes:g}: expected more than 0"):
        translation_demo(minutes=minutes, out=tmp_path / "demo")


def test_a_missing_device_is_refused_before_the_download(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(Translation, "with_chosen_defaults", lambda options: pytest.fail("went on"))
    with pytest.raises(ValueError, match="no CUDA device is available"):
        translation_demo(minutes=0.05, out=tmp_path, device="cuda")


def test_an_unknown_language_is_refused_before_training(wheel, tmp_path):
    with pytest.raises(ValueError, match="no language 'tlh': expected one of"):
        translation_demo(to="tlh", out=tmp_path / "demo")
    with pytest.raises(ValueError, match="no pairs are left for validation"):
        translation_demo(to="xx", out=tmp_path / "demo")
    assert not (tmp_path / "demo" / "en-xx").exists()
