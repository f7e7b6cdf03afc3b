"""Chat templates as people write them, each compared with plain Jinja: the same text, or the same refusal."""

import json
from datetime import datetime

import pytest
import tokenizers
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from glassformer.text.chat import render_chat
from glassformer.text.chat_bounds import FILTERS, TEXT_METHODS
from glassformer.text.chat_template import ChatTemplate
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer

NOW = datetime(2024, 5, 17, 12, 30)
CONTROL = ["<s>", "</s>", "<|turn|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "[IN]", "[OUT]"]
ROLES = {"bos_token": "<s>", "eos_token": "</s>"}

# Our own texts, in the manner of published templates.
TEMPLATES = {
    "loop and roles": """
{%- for message in messages %}
{{- '<|turn|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}""",
    "first and last": """
{% for m in messages %}
{% if loop.first %}{{ bos_token }}{% endif %}
{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ m.role }}: {{ m.content }}
{% if loop.last %}{{ eos_token }}{% else %}--{% endif %}

{% endfor %}""",
    "a replaced text in a loop": "{% for m in messages %}{{ m.content.replace('h', 'j') }}<|end|>{% endfor %}",
    "methods in a loop": """
{%- for m in messages -%}
{{ m.content.strip().split(' ')[0].upper().rjust(12, '.') }}{{ m.content.rsplit(' ', 1)[-1].lower().center(9, '*') }}
{{ m.content.find('o') }} {{ m.content.rfind('o') }} {{ m.content.count('l') }} {{ m.content.partition(' ')[2] }}
{{ '-'.join(m.content.splitlines()) }}{{ m.role.capitalize().ljust(10) }}{{ m.content.title().swapcase() }}<|end|>
{%- endfor -%}""",
    "the system prompt aside": """
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = 'Answer in one line.' %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token + '<|system|>' + system_message + '<|end|>' }}
{%- for message in loop_messages %}
    {{- '<|' + message.role + '|>' + message.content + '<|end|>' }}
{%- endfor %}""",
    "alternating roles": """
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: user, assistant, user, ...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}{{ '[IN] ' + message['content'] + ' [OUT]' }}
    {%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}
    {%- else %}{{ raise_exception('Unknown role ' ~ message.role) }}
    {%- endif %}
{%- endfor %}""",
    "namespaces": """
{%- set ns = namespace(found=false, turns=0, text='') %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.turns = ns.turns + 1 %}{% set ns.found = true %}{% endif %}
    {%- set ns.text = ns.text ~ message.role[0] %}
{%- endfor %}
{{- '<|system|>' ~ ns.turns ~ ' ' ~ ns.found ~ ' ' ~ ns.text }}
{%- if ns.found and not ns.turns > 5 %} few{% endif %}""",
    "the last user message": """
{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|turn|>' + message.role }}{{ ' (last)' if loop.index0 == ns.last }}{{ '<|end|>' }}
{%- endfor %}""",
    "macros": """
{%- macro turn(role, text, end='<|end|>') -%}
<|turn|>{{ role }}
{{ text | trim }}{{ end }}
{%- endmacro -%}
{%- macro both(a, b) -%}{{ turn(a.role, a.content) }}{{ turn(b.role, b.content, end='') }}{%- endmacro -%}
{%- for message in messages -%}{{ turn(message.role, message.content) }}{%- endfor -%}
{%- if messages | length > 1 %}{{ both(messages[0], messages[-1]) }}{% endif %}""",
    "call and caller": """
{%- macro box(name) %}<|turn|>{{ name }}: {{ caller(name | upper) }}<|end|>{% endmacro %}
{%- for m in messages %}
{%- call(loud) box(m.role) %}{{ loud }} says {{ m.content }}{% endcall %}
{%- endfor %}""",
    "varargs": """
{%- macro all() %}{% for x in varargs %}{{ x }};{% endfor %}
{%- for k, v in kwargs | dictsort %}{{ k }}={{ v }},{% endfor %}
{%- endmacro %}{{ all(1, 'two', three=3, four='4') }}{{ all(*['a', 'b'], **{'c': 'd'}) }}<|end|>""",
    "set blocks": """
{%- set head %}
<|system|>
You are {{ persona | default('a helper') }}.
{% endset %}
{%- set loud | upper %}{{ messages | length }} messages{% endset %}
{{- head | trim }} {{ loud }}{% filter lower %}ABC {{ messages | length }}{% endfilter %}<|end|>""",
    "tools as json": """
{%- if tools %}
{{- '<|system|>You can call:\n' }}
{%- for tool in tools %}
{{- tool | tojson }}
{{ tool.function | tojson(indent=2) }}
{{- tool.function.parameters.properties | tojson(separators=(',', ':'), sort_keys=true) }}
{%- endfor %}
{{- '<|end|>' }}
{%- endif %}
{%- for message in messages %}{{ '<|' ~ message.role ~ '|>' }}{{ message.content or '' }}<|end|>{% endfor %}""",
    "tool calls": """
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|tool|>' + message.content + '<|end|>' }}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        {{- '<|assistant|>' }}
        {%- if message.content %}{{ message.content }}{% endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{% set tool_call = tool_call.function %}{% endif %}
            {{- '{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{ tool_call.arguments }}
            {%- else %}{{ tool_call.arguments | tojson }}{% endif %}
            {{- '}' }}{{ ', ' if not loop.last }}
        {%- endfor %}
        {{- '<|end|>' }}
    {%- else %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}""",
    "tool answers together": """
{%- for message in messages %}
{%- if message.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|user|>' }}{% endif %}
    {{- '(' + message.content + ')' }}
    {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|end|>' }}{% endif %}
{%- else %}{{ '<|' ~ message.role ~ '|>' ~ (message.content or '') ~ '<|end|>' }}{% endif %}
{%- endfor %}""",
    "arguments by name": """
{%- for message in messages %}{% for call in message.tool_calls or [] %}
{%- for name, value in call.function.arguments | items %}
<|tool|>{{ name }}: {{ value if value is string else value | tojson }}
{%- endfor %}{% for name in call.function.arguments.keys() | sort %} {{ name | upper }}{% endfor %}
{%- for value in call.function.arguments.values() %} [{{ value }}]{% endfor %}
{%- for name, value in call.function.arguments.items() %} {{ name }}={{ value }}{% endfor %}
{%- endfor %}{% endfor %}""",
    "parameter types": """
{%- macro kind(p) -%}
{%- if p.type == 'array' -%}list of {{ kind(p['items']) }}
{%- elif p.type is defined and p.type is iterable and p.type is not string -%}{{ p.type | join(' or ') }}
{%- elif 'enum' in p -%}{{ p.enum | map('tojson') | join(' | ') }}
{%- else -%}{{ p.type | default('any', true) }}{%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] %}<|system|>{{ tool.function.name }}(
{%- for name, p in tool.function.parameters.properties.items() -%}
{{ name }}{{ '?' if name not in tool.function.parameters.required }}: {{ kind(p) }}{{ ', ' if not loop.last }}
{%- endfor -%}) {{ tool.function.description | default('') | wordcount }}{% endfor %}""",
    "parts of a message": """
{%- for message in messages %}
{{- '<|turn|>' + message.role + ' ' }}
{%- if message.content is string %}{{ message.content }}
{%- elif message.content is mapping %}{{ message.content.text }}
{%- elif message.content is iterable and message.content is not none %}
    {%- for part in message.content %}
        {%- if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}[picture]
        {%- else %}{{ raise_exception('Unknown part ' + part.type) }}{% endif %}
    {%- endfor %}
{%- endif %}
{{- '<|end|>' }}
{%- endfor %}""",
    "text parts by filters": """
{%- for message in messages %}{% if message.content is not string and message.content %}
{{- message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join(' + ') }}
{{- message.content | rejectattr('type', 'eq', 'text') | list | length }}
{%- else %}{{ message.content | default('nothing', true) | replace('\n', ' ') }}{% endif %}<|end|>{% endfor %}""",
    "thoughts kept aside": """
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- set thought = '' %}
    {%- if message.reasoning_content is string %}{% set thought = message.reasoning_content %}
    {%- elif '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|turn|>' ~ message.role ~ '\n' }}
    {%- if thought and loop.last or enable_thinking is defined and enable_thinking is true %}
        {{- '<think>\n' ~ thought.strip('\n') ~ '\n</think>\n\n' }}
    {%- endif %}
    {{- content ~ '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}<|turn|>assistant
{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}""",
    "generation": """
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|assistant|>{% generation %}{{ message.content }}<|end|>{% endgeneration %}
{%- else %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endif %}
{%- endfor %}""",
    "generation has its own names": """
{%- set x = 'before' %}{% for m in messages %}
{%- generation %}{% set x = m.role %}{{ x }}{% endgeneration %}{{ x }};{% endfor %}
{{- x }}<|end|>""",
    "the date": """
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{% set date_string = strftime_now('%d %b %Y') %}
    {%- else %}{% set date_string = '1 Jan 2024' %}{% endif %}
{%- endif %}
{{- '<|system|>Today is ' + date_string + strftime_now(' %H:%M') }}""",
    "break and continue": """
{%- for message in messages %}
{%- if message.role == 'system' %}{% continue %}{% endif %}
{%- if loop.index > 3 %}{% break %}{% endif %}
{{- message.role }}: {{ message.content }}<|end|>
{%- else %}nobody spoke
{%- endfor %}""",
    "a condition on the loop": """
{%- for message in messages if message.role in ['user', 'assistant'] and message.content %}
{{- loop.index }}{{ loop.cycle('a', 'b') }}{{ '!' if loop.changed(message.role) }} {{ message.content }}<|end|>
{%- else %}<|system|>silence{% endfor %}""",
    "nested loops": """
{%- for message in messages %}{% set outer = loop %}
{%- for word in message.content.split() %}{{ outer.index }}.{{ loop.index }}
{{- word[:2] }}{{ word[-1] }}{{ ',' if not loop.last }}
{%- endfor %}<|end|>{% endfor %}""",
    "a recursive loop": """
{%- set tree = [{'name': 'a', 'below': [{'name': 'b', 'below': []}]}, {'name': 'c', 'below': []}] %}
{%- for node in tree recursive %}({{ node.name }}{{ loop.depth }}{{ loop(node.below) if node.below }})
{%- endfor %}<|end|>""",
    "arithmetic": """
{%- set n = messages | length %}
{{- n * 2 + 1 }} {{ n / 2 }} {{ n // 2 }} {{ n % 2 }} {{ 2 ** n }} {{ -n }} {{ (n - 3) | abs }} {{ 3.14159 | round(2) }}
{{- '<|end|>' if n >= 2 and not (n == 3 or n > 9) else eos_token }} {{ '%02d/%s' % (n, 'x') }} {{ "%.1f" | format(n) }}
{{- [3, 1, 2] | sort | join }} {{ [1, 2, 3] | sum }} {{ [n, 4] | max }} {{ [n, 4] | min }} {{ '7' | int + 1 }}""",
    "format": """
{%- for m in messages %}{{ '{}|{:>10}|{role!r:<12}'.format(loop.index, m.role, role=m.role) }}
{{- '{a[role]}'.format_map({'a': m}) }}{{ 'x'.zfill(3) }}{{ 'a\tb'.expandtabs(4) }}<|end|>{% endfor %}""",
    "tests of every kind": """
{%- for x in [none, true, 0, 1.5, 'a', '', [], [1], {}, {'a': 1}, missing, messages] %}
{{- [x is none, x is defined, x is string, x is number, x is integer, x is float, x is boolean, x is mapping,
    x is iterable, x is sequence, x is true, x is false, x is undefined] | map('int') | join }} {{ 'y' if x else 'n' }}
{% endfor %}
{{- 1 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 'a' is in 'abc' }}{{ 'A' is upper }}{{ 2 is gt 1 }}
{{- 'a' is eq 'a' }}""",
    "filters of every kind": """
{%- set words = messages | map(attribute='role') | list %}
{{- words | first }} {{ words | last }} {{ words | unique | list }} {{ words | sort(reverse=true) | join(', ') }}
{{ words | map('upper') | select('ne', 'USER') | list }} {{ words | reject('equalto', 'user') | list | tojson }}
{{ words | batch(2, '-') | map('join', '+') | list }} {{ words | slice(2) | list }} {{ words | reverse | list }}
{{ 'some text here' | title }} {{ 'ab cd' | capitalize }} {{ 'x' | indent(2, true) }} {{ 'a b c' | wordcount }}
{{ 'a long text indeed' | truncate(9) }} {{ '<a>' | escape }} {{ {'b': 2, 'a': 1} | dictsort }} {{ [1, [2]] | string }}
{{ 'ab' | list }} {{ 'ab' | center(6) }}| {{ '3.5' | float }} {{ 'x' | default('y') }} {{ '' | d('z', true) }}
{%- for group in messages | groupby('role') %} {{ group.grouper }}:{{ group.list | length }}{% endfor %}
{{ [{'n': 1}, {'n': 2}] | sum(attribute='n') }} {{ [{'n': 1}, {'n': 2}] | join('-', attribute='n') }}<|end|>""",
    "slices and indices": """
{{- messages[0].role if messages }} {{ messages[-1]['role'] if messages }}
{{- messages[1:] | length }} {{ messages[:-1] | length }}
{{- (messages | first).role | default('none') }} {{ messages[99] is defined }} {{ 'abcdef'[1:4] }} {{ 'abcdef'[::-2] }}
{{- messages[0].get('name', 'nameless') if messages }} {{ (messages[0]['nothing'] is defined) if messages }}<|end|>""",
    "whitespace control": """
   {% for m in messages %}
      {{ m.role }}
   {%- if true -%}
      |
   {%- endif +%}
      {#- a comment -#}
  {{- m.content -}}
   <|end|>
   {% endfor %}
{% raw %}{{ not a variable }}{% endraw %}
""",
    "inline conditions": """
{{- ('<|system|>' ~ messages[0].content) if messages and messages[0].role == 'system' else '' }}
{{- 'a' if add_generation_prompt else 'b' if messages else 'c' }}{{ none or 'd' }}{{ '' and 'e' }}{{ not messages }}
{{- eos_token if eos_token is defined and eos_token not in 'abc' }}""",
    "documents": """
{%- if documents %}<|system|>
{%- for doc in documents %}
[{{ loop.index }}] {{ doc.title | default('untitled') }}
{{ doc.text | indent(4, first=true) }}
{%- endfor %}<|end|>{% endif %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}""",
    "with and dict": """
{%- with d = dict(a=1, b=[1, 2]), names = {'user': 'Human', 'assistant': 'Bot'} %}
{{- d.items() | list }} {{ d.get('c', 3) }} {{ 'a' in d }} {{ d.keys() | list }}
{{- d.copy() == d }} {{ dict(d, c=4) | length }}
{%- for m in messages %}
{{- names[m.role] | default(names.get(m.role, m.role) | capitalize) }}: {{ m.content }}<|end|>{% endfor %}
{%- endwith %}""",
    "cycler and joiner": """
{%- set comma = joiner(', ') %}{% set row = cycler('odd', 'even') %}
{%- for m in messages %}{{ comma() }}{{ row.next() }} {{ row.current }} {{ m.role }}{% endfor %}<|end|>""",
    "parts of tokens": """
{%- for m in messages %}{{ '<|' }}{{ m.role }}{{ '|>' }}
{{- m.content.removeprefix('Hi').removesuffix('.') }}{{ '<|end|>' }}{% endfor %}""",
    "text cut at marks": """
{%- for m in messages %}{% set pieces = m.content.split('###', 1) %}
{{- '<|turn|>' + m.role }}{% for p in pieces %}{{ '[IN]' + p.strip() + '[OUT]' }}{% endfor %}
{%- if m.content.startswith(('Hi', 'A')) or m.content.endswith('?') %}?{% endif %}{% endfor %}""",
    "join with a token": "{{ messages | map(attribute='content') | map('trim') | join('<|end|>') }}{{ '<|end|>' }}",
    "an unknown filter": "{{ messages | nonsense }}",
    "an unknown role fails": """
{%- for m in messages %}{{ {'user': '<|user|>', 'assistant': '<|assistant|>'}[m.role] + m.content }}{% endfor %}""",
}

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": 'Where? "here"'},
        "days": {"type": "array", "items": {"type": "integer"}},
        "unit": {"enum": ["C", "F"]},
        "late": {"type": ["boolean", "null"]},
    },
    "required": ["city"],
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Ask it.", "parameters": PARAMETERS}}]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Genève <&>", "days": [1, 2]}}}
PLAIN = [
    {"role": "system", "content": "  Be kind.\n"},
    {"role": "user", "content": "Hi there\n\nhello world?"},
    {"role": "assistant", "content": "Hello hello ### A second half."},
    {"role": "user", "content": "\tWhy <b>not</b> 100% é 😀?  "},
]
CHATS = {
    "plain": (PLAIN, {}),
    "without system": (PLAIN[1:], {"persona": "a poet", "date_string": "1 May 2020"}),
    "one turn": (PLAIN[1:2], {"enable_thinking": False}),
    "two users": ([PLAIN[1], PLAIN[3]], {}),
    "nobody": ([], {}),
    "tools": (
        [
            PLAIN[1],
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": '{"now": "rain"}', "name": "weather"},
            {"role": "tool", "content": "sun"},
            {"role": "assistant", "content": "It rains."},
        ],
        {"tools": TOOLS},
    ),
    "no content": ([PLAIN[1], {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}], {"tools": TOOLS}),
    "parts": (
        [{"role": "user", "content": [{"type": "text", "text": " What is it? "}, {"type": "image"}]}, PLAIN[2]],
        {"documents": [{"title": "One", "text": "first\nsecond"}, {"text": "third"}]},
    ),
    "thoughts": (
        [
            PLAIN[1],
            {"role": "assistant", "content": "<think>\nhm, well\n</think>\n\nYes."},
            {"role": "user", "content": "Sure?"},
            {"role": "assistant", "content": "Yes!", "reasoning_content": "again"},
        ],
        {"enable_thinking": True},
    ),
}


class Generation(Extension):
    """`{% generation %}` as a call block, which has names of its own."""

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
    """What Jinja's own sandbox makes of a template, with the settings of the field."""
    return JINJA.from_string(source).render(**variables)


def outcome(render):
    """The text, or None and the reason why there is none."""
    try:
        return render(), ""
    except Exception as error:
        return None, str(error)


def byte_level():
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ll"]
    inner = tokenizers.Tokenizer(
        models.BPE({token: index for index, token in enumerate(tokens)}, [("h", "e"), ("l", "l")])
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    return inner


INNER = byte_level()
TOKENIZER = PretrainedTokenizer.from_json(INNER.to_str(), ROLES)
CONTROL_IDS = {INNER.token_to_id(token) for token in CONTROL}


def variables_of(chat, prompt):
    messages, given = CHATS[chat]
    return {"tools": None, "documents": None, **ROLES, **given, "messages": messages, "add_generation_prompt": prompt}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_prints_what_plain_jinja_prints_or_is_refused_as_there(name):
    template, printed = outcome(lambda: ChatTemplate(TEMPLATES[name]))[0], 0
    for chat in CHATS:
        for prompt in (False, True):
            variables = variables_of(chat, prompt)
            expected, reason = outcome(lambda given=variables: plain(TEMPLATES[name], given))
            found, own_reason = outcome(lambda given=variables: template.render(given, NOW))
            assert found == expected, f"{chat}: {own_reason or reason}"
            assert not own_reason or reason in own_reason or template is None or "exception" not in TEMPLATES[name]
            printed += expected is not None
    assert printed or name == "an unknown filter"


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_ids_are_those_of_the_text(name, monkeypatch):
    """Where no text holds a control token, reading the whole text gives the same ids."""

    class Now(datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    monkeypatch.setattr("glassformer.text.chat.datetime", Now)
    for chat, (messages, given) in CHATS.items():
        text, _ = outcome(lambda chat=chat: plain(TEMPLATES[name], variables_of(chat, True)))
        if text is not None:
            ids = render_chat(messages, TEMPLATES[name], TOKENIZER, variables=given)
            assert ids == INNER.encode(text, add_special_tokens=False).ids, chat


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_text_adds_a_control_token(name):
    """Tokens typed by a user are spelled out; where it is unclear who wrote one, the template is refused."""

    def with_tokens(value):
        text = json.dumps(value, ensure_ascii=False)
        for word, token in (("hello", "<|end|>"), ("Be kind", "<s>"), ("rain", "<|user|>"), ("What", "[IN]")):
            text = text.replace(word, token)
        return json.loads(text)

    def control(messages, given):
        ids = render_chat(messages, TEMPLATES[name], TOKENIZER, variables=given)
        return [index for index in ids if index in CONTROL_IDS]

    for chat, (messages, given) in CHATS.items():
        expected, _ = outcome(lambda given=given, messages=messages: control(messages, given))
        found, reason = outcome(lambda given=given, messages=messages: control(with_tokens(messages), given))
        assert found == expected or "mixes its control tokens" in reason, chat


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
    """One template for several values of its variables, in plain Jinja and here."""
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


def test_all_filters_but_two_are_there():
    filters = set(ImmutableSandboxedEnvironment().filters)
    assert filters - {*FILTERS, "join", "sum", "tojson"} == {"pprint", "random"}  # slow, and never the same


# Each of these compares every character with every other in plain Python: for hours at these sizes.
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
