"""The names of `glassformer` itself: what `dir` lists, executed examples, and suggestions for typos."""

import doctest
import subprocess
import sys

import pytest

import glassformer
from glassformer import documents
from newcomer.files import write_files

FAST = 'minutes=0, updates=2, max_tokens=256, device="cpu"'
"""What an example trains with here in place of `minutes=5`."""


def test_dir_lists_the_front_door_and_nothing_else():
    assert dir(glassformer) == sorted(glassformer.__all__)
    assert {"load", "train", "build_model", "preset", "capture_attention"} <= {*glassformer.__all__}
    assert not {*glassformer.__all__} & {*documents.__all__}


def test_star_import_gives_the_front_door():
    names = {}
    exec("from glassformer import *", names)
    assert {*glassformer.__all__} == {*names} - {"__builtins__"}


@pytest.mark.parametrize("name", documents.__all__)
def test_names_of_the_documents_can_be_imported_unlisted(name):
    assert getattr(glassformer, name) is getattr(documents, name)


@pytest.mark.parametrize("name", glassformer.__all__)
def test_example_in_the_docstring_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    text = getattr(glassformer, name).__doc__.replace("minutes=5", FAST)
    examples = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert examples.examples, f"glassformer.{name} has no example in its docstring"
    told = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(examples, out=told.append)
    assert not runner.failures, "".join(told)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("laod", "load"), ("trian", "train"), ("build_modle", "build_model"), ("Transfomer", "Transformer"), ("NN", "nn")],
)
def test_a_typo_gets_a_suggestion(typo, meant):
    with pytest.raises(AttributeError, match=f"no attribute '{typo}': did you mean '{meant}'?"):
        getattr(glassformer, typo)


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(AttributeError, match="expected one of GenerationConfig, ModelConfig, StopTraining"):
        glassformer.qqqqqqqq  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    program = "import sys, glassformer; dir(glassformer); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
