"""Templates of ours and the contexts they are rendered with."""

MESSAGES = [
    {"role": "system", "content": "Be brief.  "},
    {"role": "user", "content": "Hello \"there\" <b> é 漢 😀\n"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 3, "x": [1, 2.5, None, True]}}},
        {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "{\"t\": 21}"},
    {"role": "tool", "tool_call_id": "call_2", "content": "12:00"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 21 degrees.", "reasoning_content": "hm"},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": " tomorrow?"}]},
]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Gives the weather.\nDaily.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "a city", "enum": ["Köln", "Rome"]},
            "days": {"type": "integer", "default": 1},
            "options": {"type": "object", "properties": {"unit": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}}}}}}},
    {"type": "function", "function": {"name": "time", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
CHAT = {"messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
PLAIN = {"messages": [{"role": "user", "content": "Hi"}], "tools": None, "add_generation_prompt": True, "bos_token": "<s>"}
DATA = {"n": 7, "f": 2.5, "s": "Hello World", "e": "", "l": [3, 1, 2], "d": {"b": 1, "a": [1, {"c": None}], "items2": 3},
        "u": "Größe ẞ 漢字\u00a0x", "t": True, "none": None, "big": 123456789012345678901234567890,
        "words": ["b", "A", "c", "a"], "rows": [{"k": "x", "v": 2}, {"k": "y", "v": 1}, {"k": "x", "v": 3}, {"v": 9}],
        "multi": "one\n two\n\nthree\n", "html": "<a href=\"x\">'&</a>", "neg": -7, "zero": 0}

FAMILIES = {
    "turns": """{#- Our own: turns between brackets, the thought kept only behind the last question. -#}
{%- set state = namespace(question=-1, calls=0) -%}
{%- for m in messages | reverse -%}
  {%- if state.question < 0 and m.role == 'user' -%}
    {%- set state.question = loop.revindex0 -%}
  {%- endif -%}
{%- endfor -%}
{%- if tools %}
[[tools]]
  {%- for entry in tools %}
{{ loop.index }}. {{ entry.function.name }}({{ entry.function.parameters.properties | list | join(', ') }}) {{ entry | tojson }}
  {%- endfor %}
{% endif -%}
{%- for m in messages %}
    {%- set body = m.content if m.content is string else '' %}
    {%- set thought = m.reasoning_content if m.reasoning_content is string else '' %}
    {%- if not thought and '</think>' in body %}
        {%- set thought = body.split('</think>')[0].split('<think>')[-1].strip() %}
    {%- endif %}
    {%- if '</think>' in body %}{% set body = body.split('</think>', 1)[1].lstrip('\n') %}{% endif %}
    {{- '[[' ~ m.role ~ ']]\n' }}
    {%- if thought and loop.index0 > state.question %}{{ '(' + thought + ')\n' }}{% endif %}
    {{- body.rstrip() }}
    {%- for call in m.tool_calls or [] %}
        {%- set state.calls = state.calls + 1 %}
        {{- '\n->' ~ state.calls ~ ' ' }}{{ call.function.name }} {{ call.function.arguments | tojson }}
    {%- endfor %}
    {%- if m.role == 'tool' and (loop.last or loop.nextitem.role != 'tool') %}{{ '\n[[results end]]' }}{% endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[[assistant]]\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '()\n' }}{% endif %}
{%- endif %}
""",
    "cards": """{{ bos_token -}}
{%- set head = messages[0] -%}
{%- set rest = messages -%}
{%- if head['role'] in ['system', 'developer'] -%}
    {%- set rest = messages[1:] -%}
    {%- set instructions = head['content'] | trim -%}
{%- endif -%}
CARD {{ date | default(strftime_now("%d %b %Y")) }}
{% if tools is not none -%}
    {% for tool in tools -%}
{{ tool | tojson(indent=4) }}
---
    {%- endfor %}
{%- endif %}
{{ instructions }}
{% for m in rest -%}
    {% if strict is defined and (m.tool_calls or []) | length > 1 -%}
        {{ raise_exception("a card holds one call") }}
    {%- endif %}
    {% if m.tool_calls is defined -%}
        {% for call in m.tool_calls -%}
            {% set f = call.function %}{{ '{"do": "' + f.name + '", "with": ' ~ (f.arguments | tojson) + "}" -}}
        {% endfor %}
    {%- elif m['content'] is mapping or (m['content'] is iterable and m['content'] is not string) -%}
        {% for part in m['content'] -%}
            {% if 'image' in part -%}<picture>{% elif part['type'] == 'text' -%}{{ part['text'] }}{% endif %}
        {%- endfor %}
    {%- else -%}
        {{ m['role'] | title }}: {{ m['content'] | trim }}
    {%- endif %}
.
{% endfor -%}
""",
    "macros": """{%- macro who(m) -%}<{{ m.get('name') or m['role'] }}|{{ {'user': 1, 'assistant': 2}.get(m['role'], 0) }}>{%- endmacro -%}
{%- macro words(m) -%}
    {%- set c = m.get('content') -%}
    {%- if c is string -%}{{ c }}
    {%- elif c is not none -%}{%- for part in c -%}{{ part.text if part.text is defined else '?' }}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set mark = namespace(at=-1) -%}
{%- for i in range(messages | length - 1, -1, -1) -%}
    {%- if messages[i]['role'] == 'assistant' and not messages[i].get('tool_calls') -%}
        {%- set mark.at = i -%}
        {%- break -%}
    {%- endif -%}
{%- endfor -%}
{%- if tools -%}({{ tools | tojson(separators=(',', ':')) }}){%- endif -%}
{%- for m in messages[:mark.at + 1] -%}
    {{ who(m) }}{{ words(m) | replace('\n', '/') }}
    {%- for call in m.get('tool_calls', []) -%}
        {%- if loop.first %}{ {%- endif -%}
        {{ call['id'] }}={% if call['function']['arguments'] is string %}{{ call['function']['arguments'] }}{% else %}{{ call['function']['arguments'] | tojson }}{% endif %};
        {%- if loop.last %} } {%- endif -%}
    {%- endfor -%}
    {%- if m['role'] == 'tool' %} answers {{ m.tool_call_id }}
    {%- endif -%}
    {{ '\n' }}
{%- endfor -%}
{%- for m in messages[mark.at + 1:] -%}{{ who(m) }}{{ words(m) }}<end>{%- endfor -%}
{%- if add_generation_prompt -%}{{ who({'role': 'assistant'}) }}{%- endif -%}
""",
    "typescript": """{%- macro type_of(spec, depth) -%}
    {%- if spec.enum %}{% for v in spec.enum %}{{ '"' ~ v ~ '"' }}{% if not loop.last %} | {% endif %}{% endfor %}
    {%- elif spec.type == "array" -%}{{ type_of(spec['items'], depth) }}[]
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\\n" -}}
        {%- for key, value in spec.properties.items() -%}
            {%- if value.description %}{{ "  " * depth }}// {{ value.description }}{{ "\\n" }}{% endif -%}
            {{- "  " * depth ~ key }}{% if key not in (spec.required or []) %}?{% endif %}: {{ type_of(value, depth + 1) }}
            {%- if value.default is defined %}, // default: {{ value.default }}{% endif %}{{ ",\\n" -}}
        {%- endfor -%}
        {{- "  " * (depth - 1) ~ "}" -}}
    {%- elif spec.type == "integer" -%}number
    {%- elif spec.type -%}{{ spec.type }}
    {%- else -%}any{%- endif -%}
{%- endmacro -%}
module tools:
{% for tool in tools or [] %}{% set f = tool.function %}
{% if f.description %}// {{ f.description | replace("\\n", "\\n// ") }}
{% endif %}
{{ f.name }} takes {{ type_of(f.parameters, 1) }}

{% endfor %}
end
""",
    "lines": """{% if not messages %}{{ raise_exception('no messages') }}{% endif %}
    {% for message in messages %}
        {% if message.role == 'system' %}
[SYS]{{ message.content }}
        {% elif message.role == 'user' %}
   {# a comment on its own line #}
[USER] {{ message.content if message.content is string else (message.content | map(attribute='text') | join('')) }}
        {%+ else %}
[{{ message.role | upper }}] {{ message.content | default('nothing', true) }}{{ eos_token }}
        {% endif %}
    {% endfor %}
{% generation %}
{{ messages | selectattr('role', 'equalto', 'assistant') | list | length }} answers
{% endgeneration %}
{% if add_generation_prompt -%}

    [ASSISTANT]
{%- endif %}

""",
    "alternate": """{%- set loop_messages = messages %}
{%- for message in loop_messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception("it is not the turn of " ~ message["role"]) }}{% endif %}
{{- message['role'] }}: {{ message['content'] }};
{%- endfor %}""",
}

_CHATS = [CHAT, PLAIN, {**CHAT, "tools": None}, {**PLAIN, "enable_thinking": False}, {**PLAIN, "messages": []},
          {**CHAT, "add_generation_prompt": False, "messages": MESSAGES[:2]}, {**CHAT, "strict": 1},
          {**PLAIN, "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}]

SNIPPETS = """
{{ n }} {{ f }} {{ s }} {{ e }}|{{ l }} {{ d }} {{ u }} {{ t }} {{ none }} {{ big }} {{ missing }}|
{{ [1, 'a', "it's", 'q"', none, true, 1.0, (1,), (1, 2), {'k': 'v\\n'}] }}
{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.5e300 }} {{ 100.0 }} {{ 3 / 2 }} {{ 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -n + 1 }} {{ - 3 | abs }} {{ 2 ** 3 ** 2 }} {{ n ~ s ~ none ~ missing }} {{ 'a' 'b' }}
{{ 'x' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'a' + 'b' }} {{ 3 * 'ab' }} {{ 'a' * -1 }}|
{{ n == 7 }} {{ n != 7.0 }} {{ 1 == true }} {{ 'a' == "a" }} {{ [1] == [1] }} {{ {'a':1} == {'a':1} }} {{ none == none }} {{ n > 3 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }}
{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in l }} {{ 'b' in d }} {{ 'z' in d }} {{ not 1 in l }} {{ 'x' in missing }}
{{ t and n }} {{ zero or 'x' }} {{ not t }} {{ not not n }} {{ e or none }} {{ n if t else f }} {{ n if zero }}| {{ 'a' if zero else 'b' if zero else 'c' }}
{{ s[0] }} {{ s[-1] }} {{ s[99] }}| {{ s[1:4] }} {{ s[::-1] }} {{ s[::2] }} {{ s[-3:] }} {{ s[:-3] }} {{ l[1:] }} {{ l[::-1] }} {{ l[5:] }} {{ l[-1] }} {{ l[9] }}| {{ u[2:4] }} {{ u[::-1] }} {{ l[2:0:-1] }} {{ l[:] }} {{ s[3:1] }}|
{{ d.b }} {{ d['b'] }} {{ d.a[1].c }} {{ d.a.1 }} {{ d.zzz }}| {{ d['zzz'] }}| {{ d.items2 }} {{ l.0 }} {{ d['a'][0] }}
{{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }}
{{ s.strip() }} {{ '  x '.strip() }}| {{ '  x '.lstrip() }}| {{ '  x '.rstrip() }}| {{ 'xxaxx'.strip('x') }} {{ 'abcba'.lstrip('ab') }} {{ 'abcba'.rstrip('ab') }} {{ '\\u00a0 x\\u2003'.strip() }}|
{{ s.upper() }} {{ s.lower() }} {{ 'they are'.title() }} {{ 'hELLO wORLD'.capitalize() }} {{ u.upper() }} {{ u.lower() }} {{ "it's a1b".title() }}
{{ s.split() }} {{ s.split('o') }} {{ s.split('o', 1) }} {{ ' a  b '.split() }} {{ ' a  b c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a b c'.rsplit(maxsplit=1) }} {{ multi.splitlines() }}
{{ s.startswith('Hell') }} {{ s.endswith('x') }} {{ s.startswith(('a', 'H')) }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('z') }} {{ s.count('l') }} {{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 2) }} {{ 'abc'.replace('', '-') }} {{ s.index('W') }}
{{ ','.join(['a', 'b']) }} {{ ''.join([]) }}| {{ 'abc'.isalpha() }} {{ '123'.isdigit() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ ''.isdigit() }} {{ 'AB'.isupper() }} {{ 'Ab'.islower() }} {{ 'foobar'.removeprefix('foo') }} {{ 'foobar'.removesuffix('bar') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }}
{{ s | upper }} {{ s | lower }} {{ s | title }} {{ 'hELLO' | capitalize }} {{ s | length }} {{ u | length }} {{ l | count }} {{ d | length }} {{ s | replace('o', '0') }} {{ s | replace('l', 'L', 1) }} {{ '  a ' | trim }}| {{ 'xax' | trim('x') }} {{ n | string + 'x' }}
{{ missing | default('d') }} {{ e | default('d') }}| {{ e | default('d', true) }} {{ none | default('d') }} {{ none | default('d', boolean=true) }} {{ missing | d(7) }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 3.9 | int }} {{ '3.9' | int }} {{ ' 12 ' | int }} {{ 'ff' | int(0, 16) }} {{ '2.5' | float }} {{ 'x' | float }} {{ true | int }} {{ -3 | abs }} {{ -2.5 | abs }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.567 | round(2) }} {{ 2.1 | round(0, 'ceil') }} {{ 7 | float }}
{{ l | first }} {{ l | last }} {{ s | first }} {{ [] | first }}| {{ l | sort }} {{ l | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ l | sum }} {{ l | min }} {{ l | max }} {{ l | reverse | list }} {{ s | reverse }} {{ [1, 2, 1] | unique | list }} {{ ['a', 'A'] | unique | list }} {{ words | max }}
{{ l | join }} {{ l | join(', ') }} {{ rows | join(', ', attribute='v') }} {{ words | map('upper') | join('-') }} {{ rows[:3] | map(attribute='k') | list }} {{ rows | map(attribute='k', default='-') | list }} {{ ['a b', 'c'] | map('replace', ' ', '_') | list }} {{ l | map('string') | join }}
{{ l | select('odd') | list }} {{ l | reject('odd') | list }} {{ [0, 1, '', 'a'] | select | list }} {{ rows | selectattr('k') | list | length }} {{ rows | selectattr('k', 'equalto', 'x') | map(attribute='v') | list }} {{ rows | rejectattr('k', 'defined') | list }} {{ rows | selectattr('k', 'in', ['y']) | list }} {{ l | select('gt', 1) | list }} {{ rows | selectattr('v', '>=', 3) | map(attribute='v') | list }} {{ rows | sum(attribute='v') }}
{{ d | items | list }} {{ missing | items | list }} {{ d | dictsort }} {{ {'b': 1, 'A': 2, 'c': 0} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(false, 'value') }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ d | list }} {{ s | list | length }} {{ rows | map(attribute='v') | sort | list }} {{ rows | sort(attribute='v') | map(attribute='v') | list }}
{{ multi | indent }}|{{ multi | indent(2, true) }}|{{ multi | indent(2, blank=true) }}|{{ 'a' | indent }}|{{ 'a\\nb' | indent('> ', first=true) }}
{{ '%s is %d' | format('x', 3) }} {{ '%5.2f|%-5s|%05d|%x' | format(3.14159, 'ab', 42, 255) }} {{ '%s' % s }} {{ '%s-%s' % (1, 2) }} {{ '100%%' | format }} {{ html | e }} {{ html | escape }} {{ html | safe }} {{ '%r' | format('q') }}
{{ d | tojson }} {{ d | tojson(indent=2) }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ [] | tojson(indent=2) }} {{ {} | tojson }} {{ [1.0, 1e22, 0.1, big, true, none, "\\u0001\\"\\\\/\\u007f\\u2028"] | tojson }} {{ '😀' | tojson(ensure_ascii=true) }} {{ html | tojson }}
{{ rows | groupby('v') | length }} {% for k, g in rows[:3] | groupby('k') %}{{ k }}:{{ g | length }};{% endfor %} {{ l | batch(2) | list }} {{ l | batch(2, 0) | list }} {{ d | attr('b') }}|
{{ n is defined }} {{ q is defined }} {{ q is undefined }} {{ q is not defined }} {{ n is number }} {{ t is number }} {{ n is integer }} {{ t is integer }} {{ f is float }} {{ t is boolean }} {{ t is true }} {{ t is false }} {{ none is none }} {{ s is string }} {{ d is mapping }} {{ l is sequence }} {{ s is iterable }} {{ n is iterable }} {{ d is iterable }} {{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }}
{{ n is eq 7 }} {{ n is equalto 7 }} {{ n is ne(7) }} {{ n is lt 8 }} {{ n is ge 8 }} {{ 1 is in l }} {{ 1 is in(l) }} {{ 5 is not in l }} {{ s is upper }} {{ 'ab' is lower }} {{ range is callable }} {{ n is sameas n }} {{ none is sameas none }} {{ not n is defined }} {{ n is defined and q is not defined }} {{ 'upper' is filter }} {{ 'odd' is test }}
{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(a=1, b='x') %}{% for i in l %}{% set ns.a = ns.a + i %}{% set ns.c = i %}{% endfor %}{{ ns.a }} {{ ns.b }} {{ ns.c }} {{ ns.zzz }}|
{% set ns = namespace({'q': 1}, r=2) %}{{ ns.q }}{{ ns.r }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}
{% set x %}block {{ n }}{% endset %}{{ x }}|{% set y | upper | trim %} abc {% endset %}{{ y }}|
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}|{{ loop.nextitem }} {{ loop.cycle('a', 'b') }};{% endfor %}
{% for i in [] %}x{% else %}empty{% endfor %} {% for i in l if i > 1 %}{{ i }}/{{ loop.length }} {% endfor %} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for c in 'héy' %}{{ c }}.{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %} {{ range(3) | list }} {{ range(5, 0, -2) | list }} {{ range(2, 5) | list }} {{ range(0) | list }}
{% for i in l %}{% for j in l %}{{ loop.index }}{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ loop.index }};{% endfor %}
{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}{% for row in [[1, [2, [3]]]] recursive %}{{ loop.depth }}{% for x in row %}{% if x is iterable %}{{ loop.index }}{% endif %}{% endfor %}{% endfor %}
{% for item in [{'n': 'a', 'c': [{'n': 'b', 'c': []}]}] recursive %}<{{ item.n }}{% if item.c %}{{ loop(item.c) }}{% endif %}>{% endfor %}
{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='z') }}{{ m() }}{{ m(a=5) }}{{ m(1) | upper }}
{% macro outer(x) %}{% macro inner(y) %}({{ x }}{{ y }}){% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}{{ outer('o') }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}{% set g = 3 %}{% macro seeg() %}{{ g }}{% endmacro %}{% set g = 4 %}{{ seeg() }}
{% macro wrap(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call wrap('b') %}in {{ n }}{% endcall %}{% macro each(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) each(l) %}-{{ i }}{% endcall %}
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b') | trim %} aaa {% endfilter %}| {% with x = 1, y = 2 %}{{ x + y }}{% endwith %}{{ x }}|
{% raw %}{{ not }} {% if %}{% endraw %} {# comment {{ n }} #}x{#- y -#} z
a  {%- if t %}  b  {%- endif %}  c  {{- n -}}  d {{ n }}\\n
  {% if t %}\\n  x\\n  {% endif %}\\n  y\\n
  {%+ if t %}\\nx\\n{%+ endif %}\\n{% if t +%}\\nq{% endif %}\\n
{% if t -%}\\n\\n   x {%- else -%} y {%- endif -%}\\n\\n z
  {# c #}\\n  {# d #}  e\\n{{ n }}\\n{{ n }}\\n
\\n\\n{% if t %}\\n\\nx\\n\\n{% endif %}\\n\\n
{% raw -%}\\n  {{ x }}\\n{%- endraw %}|{%- raw %} y {% endraw -%}  z
x{% if t %}y{% endif %}\\n  {% if t %}z{% endif %}\\nw\\r\\nv\\n
{{ "a\\\\nb\\\\t\\\\\\\\ \\\\u00e9\\\\x41 \\\\' \\\\q" }} {{ 'don\\\\'t' }} {{ "}}" }} {{ '{%' }} {{ {'a': {'b': 1}} }}
{{ {1: 'a', 2: 'b', 'c': 3}[1] }} {{ {1: 2}.items() | list }} {{ {1: 'x', none: 2, 1.5: 3, true: 4} | tojson }} {% for k in {3: 1} %}{{ k + 1 }}{% endfor %} {{ 1 in {1: 2} }} {{ {1: 'a'}.get(1.0) }} {{ {true: 1, 1: 2} }} {{ {2: 'a', 1: 'b'} | dictsort }}
{{ 'a{}b{}'.format(1, 'x') }} {{ '{0}{1}{0} {k} {{}}'.format(1, 2, k='v') }} {{ '{0.b}{1[0]} {a!r} {a!s}'.format(d, l, a='q') }} {{ '{}'.format(none) }}
{{ none | selectattr('a') | list }} {{ none | map('upper') | list }} {{ 'y' if (l | select('gt', 9)) else 'n' }} {{ (l | map('string'))[0] }}| {{ l | select | list | tojson }} {{ (l | map('string')) is sequence }} {{ (l | map('string')) is iterable }} {{ l | reverse | list | length }} {{ s | reverse | length }}
{{ '<' | safe + '>' }} {{ '<' + '&' | safe }} {{ ('a' | e) + '<' }} {{ '<' | safe ~ '>' }} {{ html | safe }} {{ (html | safe) == html }} {{ (html | e) | e }}
{{ l | map('string') | tojson }}
{{ l | map('string') | length }}
{{ l | reverse | length }}
{{ (l | select)[1:] }}
{{ (l | select) + l }}
{{ '{}'.format() }}
{{ '{x}'.format(1) }}
{{ 'a}'.format(1) }}
{{ {l: 1} }}
{{ raise_exception('sorry: ' + s) }}
{% if n > 5 %}{{ raise_exception("too " ~ n) }}{% endif %}
{{ strftime_now('%Y-%m-%d %H:%M:%S %d %b %Y') }}
{{ missing.x }}
{{ missing + 'a' }}
{{ 'a' + 1 }}
{{ none + 'a' }}
{{ 1 / 0 }}
{{ missing() }}
{{ n | nosuchfilter }}
{{ n is nosuchtest }}
{{ l.append(4) }}
{{ d.update({'x': 1}) }}
{{ s.__class__ }}
{% for i in n %}{% endfor %}
{{ missing | tojson }}
{{ [1, 'a'] | sort }}
{{ 'a' < 1 }}
{{ d.a.b.c }}
{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ {'a': 1}.get('a') }} {{ [1, 2][0] }} {{ (1, 2)[1] }} {{ 'abc'[1] }} {{ {'a': [1, 2]}['a'][1] }} {{ [[1, 2], [3]][0][1] }} {{ ('a', 'b') | join }}
{{ 1_000 }} {{ 1.5e3 }} {{ 2.0 }} {{ true }} {{ True }} {{ None }} {{ none is none }} {{ (1 + 2) }} {{ (1) }} {{ () }} {{ [] }} {{ {} }} {{ 'a', 'b' }} {{ not false }} {{ [1, 2, ] }} {{ {'a': 1, } }}
{% if l and s %}1{% elif x %}2{% else %}3{% endif %}{% if not l %}1{% elif s %}2{% else %}3{% endif %}{% if missing %}1{% endif %}{% if 0 %}{% else %}4{% endif %}
{% set i = 5 %}{% for i in l %}{{ i }}{% endfor %}{{ i }} {% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %} {% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}
{% set ns = namespace(found=false) %}{% for r in rows %}{% if r.k == 'y' %}{% set ns.found = true %}{% endif %}{% if ns.found %}{{ r.v }}{% endif %}{% endfor %}{{ ns.found }}
{% for r in rows %}{% if r.k is defined and r.k == 'x' %}{{ r.v }},{% elif r.k is not defined %}none{% endif %}{% endfor %}{{ rows[-1].v }}{{ rows[0]['k'] ~ rows[1].k }}
{{ (s | length > 5) and (l | length == 3) }} {{ s | length + 1 }} {{ -s | length if false else 'k' }} {{ (l | first) + 1 }} {{ l | first + 1 if false else 2 }} {{ s.split(' ')[0] | upper }} {{ (s.split(' ') | last).lower() }} {{ s.lower().split('w')[1] | trim }}
{{ multi.strip().split('\\\\n') | map('trim') | list }} {{ multi.split('\\\\n') | select | list }} {{ multi | trim | replace('\\\\n', ' ') }} {{ multi.count('\\\\n') }}
""".strip("\n").split("\n")

CASES = [(source, context) for source in FAMILIES.values() for context in _CHATS]
CASES += [(source.replace("\\\\", "\0").replace("\\n", "\n").replace("\\r", "\r").replace("\0", "\\"), DATA) for source in SNIPPETS]
