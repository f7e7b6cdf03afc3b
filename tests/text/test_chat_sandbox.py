"""The sandbox of chat templates stops hostile templates."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from jinja2.exceptions import SecurityError

from glassformer.text.chat_rendering import render_chat
from glassformer.text.chat_sandbox import Budget, Sandbox
from glassformer.text.chat_template import MAX_SOURCE
from text.chat_tokenizer import TOKENIZER

LONG, MANY = "it builds a text of more than", "it builds a value of more than"


SLOW = "it ran for more than 0.1 s"


DOUBLE = "{% set n = namespace(x=start) %}{% for i in range(99) %}{% set n.x = new %}{% endfor %}{{ n.x }}"


def doubling(start, new):
    """Return a template that doubles a value 99 times."""
    return DOUBLE.replace("start", start).replace("new", new)


HOSTILE = {
    "{% for i in range(10**9) %}x{% endfor %}": "Range too big",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": SLOW,
    "{% for i in range(99999) %}{% for j in range(99999) if 0 %}{% endfor %}{% endfor %}": SLOW,
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}": SLOW,
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{{ 'a' * 10**10 }}": LONG,
    "{{ (['a'] * 10**6) | length }}": MANY,
    "{{ 10**9999 }}": "too large a power",
    doubling("3", "n.x * n.x"): "too large a number",
    doubling("'a'", "n.x + n.x"): LONG,
    doubling("'a'", "n.x ~ n.x"): LONG,
    doubling("'a'", "n.x").replace(" = n.x %}", " %}{{ n.x }}{{ n.x }}{% endset %}"): "it wrote more than",
    "{% set x %}{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}{% endset %}": "it wrote more than",
    "{% for i in range(99999) %}{{ 'y' * 99999 }}{% endfor %}": "it wrote more than",
    doubling("[]", "[n.x, n.x]"): MANY,
    doubling("[]", "(n.x, n.x)"): MANY,
    doubling("[]", "[n.x] + [n.x]"): MANY,
    doubling("[]", "{'a': n.x, 'b': n.x}"): MANY,
    doubling("[]", "dict(a=n.x, b=n.x)"): MANY,
    doubling("[]", "[u, u] | map('d', n.x) | list"): MANY,
    "{% set x = 'a' * 99999 %}{{ x.replace('a', x) }}": LONG,
    "{% set x = 'a' * 99999 %}{{ x | replace('a', x) }}": LONG,
    "{% set x = 'a' * 99999 %}{{ range(999) | join(x) }}": LONG,
    "{% set x = 'a' * 99999 %}{{ x.join(range(9999) | map('string')) }}": LONG,
    "{{ 'a'.center(10**10) }}": LONG,
    "{{ '{:9999999999}'.format(1) }}": "it formats text to a width of 9999999999",
    "{{ '{:{}}'.format(1, 9999999999) }}": "it formats text to a width of 9999999999",
    "{{ ('{:9999}' * 9999).format(*range(9999)) }}": LONG,
    "{{ '{a.__class__}'.format(a=1) }}": "it reaches for '__class__' of a int",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}": "it reaches for '__class__' of a int",
    "{{ '%9999999999d' % 1 }}": "it formats text to a width of 9999999999",
    "{{ '%*d' % (99999999, 1) }}": "a width from outside",
    "{{ ('%(a)s' * 999) % {'a': 'a' * 99999} }}": LONG,
    "{{ '%9999999d' | format(1) }}": "it formats text to a width of 9999999",
    "{{ 'a' | center(10**10) }}": LONG,
    "{{ 'a' | indent(10**10) }}": LONG,
    "{{ [1] | tojson(indent=10**10) }}": "it indents JSON by 10000000000",
    "{{ [1, 1] | tojson(separators=('a' * 99, '')) }}": "it separates JSON",
    "{{ 'a'.ljust(10**10) }}{{ 'a'.zfill(10**10) }}": LONG,
    "{{ '\\t'.expandtabs(10**10) }}": LONG,
    "{{ ('a' * 9999).translate({97: 'a' * 9999}) }}": LONG,
    "{{ ('a ' * 99999).split() | length }}": MANY,
    "{{ ('a\\n' * 99999).splitlines() | length }}": MANY,
    "{{ ('a' * 99999) | list | length }}": MANY,
    "{{ [1] | batch(10**9, 0) | list | length }}": MANY,
    "{{ [1] | slice(10**9) | list | length }}": MANY,
    "{{ {}.fromkeys(range(99999)) | length }}": MANY,
    "{{ 5 | round(-10**9) }}": "it rounds to -1000000000 digits",
    "{{ 'a'.encode('idna') }}": "it encodes text as 'idna'",
    "{{ 'a'.encode().decode('punycode') }}": "it encodes text as 'punycode'",
    "{{ strftime_now('%999999Y') }}": "it writes the time as '%999999Y'",
    "{{ (['a'] * 9999) | groupby('a' * 5000000) | list }}": SLOW,
    "{{ ''.__class__ }}": "it reaches for '__class__' of a str",
    "{{ messages['__class__'] }}": "it reaches for '__class__' of a list",
    "{{ raise_exception.__globals__ }}": "it reaches for '__globals__' of a function",
    "{{ messages | map(attribute='__class__') | list }}": "it reaches for '__class__' of a dict",
    "{{ '' | attr('__class__') }}": "it reaches for '__class__' of a str",
    "{{ messages.append(1) }}": "'append' of 'list' object is unsafe",
    "{{ messages[0].update(a=1) }}": "'update' of 'dict' object is unsafe",
    "{{ namespace() }}": "it prints a Namespace",
    "{% include 'x' %}": "line 1: include has no place in a chat template",
    "{% import 'x' as y %}": "line 1: import has no place",
    "{% block a %}{{ self.a() }}{% endblock %}": "line 1: block has no place",
    "{% if %}": "cannot be read",
    "{{ " + "(" * 9999 + " }}": "recursion",
    "{{ a }}" * 9999: "parts: expected at most 6000",
    "x" * (MAX_SOURCE + 1): f"expected at most {MAX_SOURCE}",
}


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_template_is_stopped(monkeypatch, source):
    # Lower limits keep the test fast.
    monkeypatch.setattr("glassformer.text.chat_bounds.MAX_NODES", 10_000)
    if HOSTILE[source] == SLOW:
        monkeypatch.setattr("glassformer.text.chat_sandbox.MAX_SECONDS", 0.1)
    start = time.thread_time()
    with pytest.raises(ValueError, match=re.escape(HOSTILE[source])):
        render_chat([{"role": "user", "content": "hello"}], source, TOKENIZER)
    assert time.thread_time() - start < 60  # far above the limit, so that only an unlimited template fails


def test_every_rendering_and_every_thread_has_its_own_budget(monkeypatch):
    monkeypatch.setattr("glassformer.text.chat_bounds.MAX_CHARS", 10)
    budget = Budget()
    budget.start(datetime(2024, 5, 17))
    budget.spend(10)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: (budget.start(datetime(2025, 1, 1)), budget.chars)).result()[1] == 10
    assert (budget.chars, budget.now.year) == (0, 2024)
    with pytest.raises(SecurityError, match="it wrote more than 10 characters"):
        budget.spend(1)
    budget.start(datetime(2024, 5, 17))
    budget.spend(1)


def test_templates_see_listed_attributes_only():
    sandbox = Sandbox()
    assert sandbox.is_safe_attribute("text", "upper", str.upper)
    assert sandbox.is_safe_attribute({}, "items", dict.items)
    for value, attribute in (("text", "__class__"), ({}, "update"), ([], "append"), (datetime, "now"), (1, "to_bytes")):
        assert not sandbox.is_safe_attribute(value, attribute, getattr(value, attribute))
