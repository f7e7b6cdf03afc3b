"""Errors while loading name the file, keep their type and are short."""

from pathlib import Path

import pytest

from glassformer.checkpoint.load_errors import naming_errors, refusing_wrong_values
from glassformer.checkpoint.safe_files import CorruptFolderError

PATH = Path("models") / "m.gguf"


def raise_within(context, error):
    with context:
        raise error


def test_an_error_without_the_path_gets_it_and_keeps_its_type():
    class OwnError(ValueError):
        pass

    with pytest.raises(OwnError, match=rf"^{PATH}: vocab_size=0$"):
        raise_within(naming_errors(PATH), OwnError("vocab_size=0"))


def test_an_error_with_the_path_stays_as_it_is():
    error = ValueError(f"{PATH} has 3 bytes")
    with pytest.raises(ValueError, match="has 3 bytes") as caught:
        raise_within(naming_errors(PATH), error)
    assert caught.value is error
    assert str(error) == f"{PATH} has 3 bytes"


def test_a_long_message_is_shortened():
    with pytest.raises(ValueError, match=r"x \.\.\. x") as caught:
        raise_within(naming_errors(PATH), ValueError("x" * 100_000))
    assert len(str(caught.value)) < 1100


def test_the_current_folder_is_named_by_its_full_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^{tmp_path.resolve()}: wrong[.]$"):
        raise_within(naming_errors(Path(".")), ValueError("wrong."))


@pytest.mark.parametrize(
    "error", [TypeError("a str"), KeyError("name"), ZeroDivisionError("by 0"), RecursionError("deep")]
)
def test_wrong_types_and_sizes_are_reported_as_corruption_of_the_file(error):
    with pytest.raises(
        CorruptFolderError, match=f"^{PATH} holds a value that cannot be used: {type(error).__name__}: "
    ):
        raise_within(refusing_wrong_values(PATH), error)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_other_errors_pass_through(error):
    with pytest.raises(type(error)) as caught:
        raise_within(refusing_wrong_values(PATH), error)
    assert caught.value is error
