"""Jinja's own sandbox with the settings of chat templates, to compare ours with."""

import json
from datetime import datetime

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2024, 5, 17, 12, 30)


class Generation(Extension):
    """`{% generation %}` as a call block, whose variables are local."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


JINJA = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])


JINJA.filters["tojson"] = to_json


JINJA.globals |= {"raise_exception": raise_exception, "strftime_now": NOW.strftime}


def plain(source, variables):
    """Render a template in plain Jinja."""
    return JINJA.from_string(source).render(**variables)


def outcome(render):
    """Return the rendered text and "", or None and the error message."""
    try:
        return render(), ""
    except Exception as error:
        return None, str(error)
