"""Shares of corpora in the training batches."""

from pathlib import Path

import pytest

from glassformer.tasks.configs.mixture import MixError, mix_name, read_mix


def test_a_mix_is_names_and_weights():
    assert read_mix("news=0.7,web=3") == {"news": 0.7, "web": 3.0}
    assert read_mix("news = 0.7, web = 3 ") == {"news": 0.7, "web": 3.0}
    assert read_mix("") == {}


@pytest.mark.parametrize(
    "text", ["news=0", "news=-1", "news=nan", "news=1e309", "news", "=1", ",", "news=1,", "a=1;b=1"]
)
def test_a_share_that_is_none_is_named(text):
    with pytest.raises(MixError, match=f"--mix {text}: .* is no share: expected NAME=NUMBER with a number above 0"):
        read_mix(text)


def test_a_name_occurs_once():
    with pytest.raises(ValueError, match="news occurs twice"):
        read_mix("news=1,news=2")


def test_files_belong_to_a_name_by_their_own_or_by_their_folder():
    assert mix_name(Path("x/news-01.en.gz"), ["news", "web"]) == "news"
    assert mix_name(Path("web/01.en"), ["news", "web"]) == "web"
    assert mix_name(Path("a.en"), []) == ""
    with pytest.raises(ValueError, match=r"a.en belongs to none of them"):
        mix_name(Path("a.en"), ["news"])
    with pytest.raises(ValueError, match="belongs to news and web"):
        mix_name(Path("web/news.en"), ["news", "web"])
