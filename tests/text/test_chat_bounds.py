"""Methods and filters of chat templates: results of plain Jinja, with bounded work."""

import pytest
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glassformer.text import chat_bounds
from glassformer.text.chat_bounds import FILTERS, TEXT_METHODS
from glassformer.text.chat_template import ChatTemplate
from text.plain_jinja import JINJA, outcome, plain

CALLS = {
    "casefold": "''",
    "encode": "'utf-8'",
    "format": "1, 2",
    "maketrans": "{'a': 'b'}",
    "translate": "{97: 'xy', 98: none}",
}


ARGUMENTS = (
    "",
    "'l'",
    "'l', 'r'",
    "2",
    "'lo', 1",
    "'lo', 1, 7",
    "9, '-'",
    "['a', 'b']",
    "('h', 'x')",
    "x=1",
    "none, 1",
)


def assert_same(source, several):
    """Assert that a template prints the same in plain Jinja and here, for each dictionary of variables."""
    peer, own = JINJA.from_string(source), ChatTemplate(source)
    for variables in several:
        expected, _ = outcome(lambda given=variables: peer.render(**given))
        found, reason = outcome(lambda given=variables: own.render(given))
        assert found == expected, f"{source}: {reason}"


@pytest.mark.parametrize("method", sorted({name for name in dir(str) if not name.startswith("_")} | TEXT_METHODS))
def test_every_method_of_a_text_works_as_in_plain_jinja(method):
    texts = ("hello world", "", "  a\tb\r\nc  ", "\ufb00 \u0130stanbul", "a{}b{}")
    for given in (*ARGUMENTS, CALLS.get(method, "")):
        source = f"{{% for m in messages %}}{{{{ m.{method}({given}) }}}}{{% endfor %}}"
        assert_same(source, [{"messages": [text, text + "l"]} for text in texts])


@pytest.mark.parametrize("kind", [list, dict, tuple])
def test_methods_of_lists_and_dictionaries_work_as_in_plain_jinja(kind):
    value = {list: ["a", "b", "a"], dict: {"a": 1, "b": [2]}, tuple: ("a", "b")}[kind]
    for method in (name for name in dir(kind) if not name.startswith("_")):
        for given in ("", "'a'", "'nothing', 5", "['x', 'y']"):
            for after in ("", " | list"):
                source = f"{{% for i in [1] %}}{{{{ value.{method}({given}){after} }}}}{{% endfor %}}"
                assert_same(source, [{"value": value}])


def test_all_filters_of_jinja_except_two_are_available():
    filters = set(ImmutableSandboxedEnvironment().filters)
    assert filters - {*FILTERS, "join", "sum", "tojson"} == {
        "pprint",
        "random",
    }  # pprint is slow; random gives another result each time


# In plain Python each of these is quadratic: at these sizes it runs for hours.
LONG = "{% set x = 'a' * 2000000 %}{% set y = 'ab' + 'a' * 1000000 %}"


SLOW_CALLS = {
    "x.rfind(y)": "-1",
    "x.rfind(y, 5, 1999999)": "-1",
    "(x + y + x).rfind(y)": "2000000",
    "(x + y + x).rindex(y)": "2000000",
    "x.rsplit(y) | length": "1",
    "(x + y + x).rsplit(y, 1) | map('length') | list": "[2000000, 2000000]",
    "x.rpartition(y) | map('length') | list": "[0, 0, 2000000]",
    "(x + y + 'a').rpartition(y) | map('length') | list": "[2000000, 1000002, 1]",
    "y in x": "False",
    "x.find(y) + x.count(y)": "-1",
    "x.replace(y, '') | length": "2000000",
    "x[:999].strip('bcdefghijklmnopqrstuvwxyz' * 99999 + 'a')": "",
}


@pytest.mark.parametrize("call", SLOW_CALLS)
def test_no_single_call_takes_long(call, monkeypatch):
    monkeypatch.setattr("glassformer.text.chat_sandbox.MAX_SECONDS", 60.0)
    assert ChatTemplate(f"{LONG}{{{{ {call} }}}}").render({}) == SLOW_CALLS[call]


def test_searches_from_the_right_find_what_python_finds(monkeypatch):
    """Long searches run from the left over the reversed text; here every search counts as long."""
    monkeypatch.setattr("glassformer.text.chat_bounds._SEARCH", 0)
    text, part = "abcdefghij-abcdefghij-abcdefghi", "abcdefghi"
    for call in ("rfind(p)", "rfind(p, 1)", "rfind(p, 0, 20)", "rfind(p, -9)", "rindex(p, 2, -3)", "rfind('x' * 9)"):
        for method in (call, call.replace("rfind", "rindex")):
            source = f"{{{{ t.{method} }}}}"
            expected, _ = outcome(lambda source=source: plain(source, {"t": text, "p": part}))
            assert outcome(lambda source=source: ChatTemplate(source).render({"t": text, "p": part}))[0] == expected
    for call in (
        "rsplit(p)",
        "rsplit(p, 1)",
        "rsplit(p, 0)",
        "rpartition(p)",
        "rpartition('x' * 9)",
        "rsplit('x' * 9)",
    ):
        source = f"{{{{ t.{call} }}}}"
        assert ChatTemplate(source).render({"t": text, "p": part}) == plain(source, {"t": text, "p": part})
    many = "".join(map(chr, range(97, 150)))
    for name in ("strip", "lstrip", "rstrip"):
        source = f"{{{{ t.{name}(c) }}}}|"
        for text in ("abc-def", "", "abc", "--"):
            assert ChatTemplate(source).render({"t": text, "c": many}) == plain(source, {"t": text, "c": many})


def test_values_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(chat_bounds, "MAX_CHARS", 10)
    monkeypatch.setattr(chat_bounds, "MAX_NODES", 4)
    chat_bounds.weigh({"a": ["b" * 9]})
    for value in ("b" * 11, ["b" * 6, "c" * 5], {"k" * 11: 1}):
        with pytest.raises(SecurityError, match="a text of more than 10 characters"):
            chat_bounds.weigh(value)
    for value in ([1, 2, 3, 4], [[1], [2, 3]]):
        with pytest.raises(SecurityError, match="a value of more than 4 parts"):
            chat_bounds.weigh(value)
    with pytest.raises(SecurityError, match="too large a number"):
        chat_bounds.weigh(1 << 5000)


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [("+", "a" * 6, "b" * 5), ("*", "ab", 6), ("*", 6, "ab"), ("%", "%s%s", ("a" * 6, "b" * 6)), ("**", 2, 5000)],
)
def test_operations_are_refused_before_they_are_computed(operator, left, right, monkeypatch):
    monkeypatch.setattr(chat_bounds, "MAX_CHARS", 10)
    with pytest.raises(SecurityError):
        chat_bounds.check_binop(operator, left, right)
    chat_bounds.check_binop("+", "a" * 5, "b" * 5)
    chat_bounds.check_binop("**", 2, 50)
