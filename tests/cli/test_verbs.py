"""The verbs of the command line, as its help lists them."""

import glassformer
from glassformer.cli.verbs import VERBS


def test_every_way_to_ask_for_help_and_the_version(call):
    usage = call("--help")[1]
    assert usage.startswith("usage: glassformer VERB")
    assert [call(word)[:2] for word in ("help", "-h")] == [(0, usage)] * 2
    assert call()[:2] == (0, usage)
    assert call("-V")[:2] == call("--version")[:2] == (0, f"glassformer {glassformer.__version__}\n")
    assert call("help", "eval")[1].startswith("usage: glassformer eval MODEL")
    assert "--verify" in call("help", "convert")[1]
    assert "--overwrite" in call("convert", "x", "-h")[1]


def test_help_lists_every_verb_and_each_verb_has_help(call):
    listed = call("--help")[1]
    for verb, about in VERBS.items():
        assert f"  {verb:12}{about}\n" in listed
        code, out, _ = call(verb, "--help")
        assert code == 0
        assert out.startswith("usage: glassformer"), verb
