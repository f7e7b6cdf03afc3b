"""Options of data that is divided into parts."""

from pathlib import Path

import pytest

from glassformer.tasks.configs import divided_data
from glassformer.tasks.translation import PairData


@pytest.mark.parametrize("text", ["news", "news=", "=1", "news=0", "news=-1", "news=nan", "news=inf", "news=a"])
def test_a_wrong_mix_is_refused(text):
    with pytest.raises(ValueError, match="expected NAME=NUMBER"):
        PairData(mix=text)


def test_data_is_large_by_its_bytes_or_mixed(tmp_path, monkeypatch):
    (tmp_path / "a.tsv").write_text("source\ttarget\n", encoding="utf-8")
    data = PairData(source=(tmp_path / "a.tsv",))
    assert not data.is_large()
    assert PairData(source=(tmp_path / "a.tsv",), mix="a=1").is_large()
    monkeypatch.setattr(divided_data, "LARGE_BYTES", 5)
    assert data.is_large()


def test_prepared_data_and_files_exclude_each_other(tmp_path):
    with pytest.raises(ValueError, match=r"--prepared x and --source a.tsv: expected one of them"):
        PairData(prepared=Path("x"), source=(Path("a.tsv"),))
