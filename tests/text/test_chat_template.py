"""Chat templates written as published ones: they print what plain Jinja and transformers print, or fail as there."""

import json
from datetime import datetime

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from glassformer.text.chat_rendering import render_chat
from glassformer.text.chat_template import MAX_REASON, ChatTemplate
from glassformer.text.pretrained_tokenizers import PretrainedTokenizer
from text.chat_tokenizer import PEER
from text.plain_jinja import NOW, outcome, plain

CONTROL = ["<s>", "</s>", "<|turn|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "[IN]", "[OUT]"]
ROLES = {"bos_token": "<s>", "eos_token": "</s>"}

# Our own templates, each with features that published ones use.
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
def test_a_template_prints_what_plain_jinja_prints_or_fails_as_there(name):
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
    """If no message contains a control token, encoding the rendered text gives the same ids."""

    class Now(datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    monkeypatch.setattr("glassformer.text.chat_rendering.datetime", Now)
    for chat, (messages, given) in CHATS.items():
        text, _ = outcome(lambda chat=chat: plain(TEMPLATES[name], variables_of(chat, True)))
        if text is not None:
            ids = render_chat(messages, TEMPLATES[name], TOKENIZER, variables=given)
            assert ids == INNER.encode(text, add_special_tokens=False).ids, chat


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_text_adds_a_control_token(name):
    """Control tokens in a message are encoded as text. If their origin is ambiguous, the template is refused."""

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


PRINTS = [
    "{{ [1, 'a', none, true, 1.5] }} {{ {'a': [1]} }} {{ nothing }} {{ none }}",
    "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{{ 'a-b'.split('-') | join(', ') }} {{ ', '.join(['x', 'y']) }} {{ [1, 2] | map('string') | list }}",
    "{{ 'a\nb\n' | indent(2) }}|{{ 'a\n\nb' | indent(2, true) }}|{{ 'ab' | replace('a', 'x') }}",
    "{{ 7 // 2 * 3 - 1 + 2 ** 3 % 5 }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 3 / 2 }} {{ 'a' ~ 1 ~ none }}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{% macro m(a, b=2) %}{{ a + b }}{% endmacro %}{{ m(1, b=5) }}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}in{% endcall %}",
    "{{ {'é': '<&>', 'a': [1, 2]} | tojson }} {{ [1, {'a': 2}] | tojson(indent=2) }} {{ 'x' | tojson }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }} {{ messages[1:] }}",
    "{{ messages[0]['content'][::-1] }} {{ messages[0].get('nope', 'no') }} {{ (messages | last).role }}",
    "  {% if true %}\n    x\n  {% endif %}\ny",
    "{{ 'x' if false }}{{ 'aXb'.lower().title() }}{{ dict(a=1).items() | list }}{{ 'a' in 'cat' and 1 not in [2] }}",
]


@pytest.mark.parametrize("source", PRINTS)
def test_a_template_prints_what_transformers_prints(source):
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    expected = PEER.apply_chat_template(messages, chat_template=source, tokenize=False)
    assert ChatTemplate(source).render({"messages": messages, "add_generation_prompt": False}) == expected


def test_renamed_texts_are_replaced_where_the_template_prints_them_only():
    source = (
        "<s>{{ 'a<s>' }}{{ messages[0] }}{% if messages[0] == '<s>' %}{{ messages[0].replace('<s>', 'x') }}{% endif %}"
    )
    template = ChatTemplate(source, {"<s>": "[begin]"})
    assert template.render({"messages": ["<s>"]}) == "[begin]a[begin]<s>x"


def test_a_failure_names_its_reason_and_a_long_reason_is_shortened():
    with pytest.raises(ValueError, match=r"the chat template cannot be read: .*endfor"):
        ChatTemplate("{% for x in messages %}")
    with pytest.raises(ValueError, match="the chat template failed: no") as error:
        ChatTemplate("{{ raise_exception('no' * 9999) }}").render({})
    assert len(str(error.value)) < MAX_REASON + 100
