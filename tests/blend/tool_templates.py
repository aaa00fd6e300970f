"""Chat templates that know tools, of the shapes that models come with. Each is written for these tests."""

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'tool' %}{{ '<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{% else %}{{ message.content or '' }}{% endif %}CALLS{{ eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_OFFER = (
    "{% if tools %}{{ '<|im_start|>system\nTools:' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}"
    "{{ eos_token + '\n' }}{% endif %}"
)

# <tool_call>{"name": ..., "arguments": ...}</tool_call>, one for each call.
TAGGED = _OFFER + _CHATML.replace(
    "CALLS",
    "{% for call in message.tool_calls or [] %}"
    "{% if message.content or not loop.first %}{{ '\n' }}{% endif %}"
    """{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}"""
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}",
)

# The same, but that something stands before each call, the first one too.
INDENTED = TAGGED.replace("{% if message.content or not loop.first %}{{ '\n' }}{% endif %}", "{{ '\t' }}")

# {"name": ..., "parameters": ...}: the message is the call, and there is one.
BARE = (
    "{% if tools %}{{ '<|im_start|>system\nAnswer with a call.' }}{% for tool in tools %}"
    "{{ '\n\n' + (tool | tojson(indent=4)) }}{% endfor %}{{ eos_token + '\n' }}{% endif %}"
    "{% for message in messages %}{% if message.tool_calls %}"
    "{% if message.tool_calls | length != 1 %}{{ raise_exception('One call at a time.') }}{% endif %}"
    "{% set call = message.tool_calls[0].function %}"
    """{{ '<|im_start|>assistant\n{"name": "' + call.name + '", "parameters": ' }}"""
    "{{ call.arguments | tojson }}{{ '}' + eos_token + '\n' }}"
    "{% elif message.role == 'tool' %}{{ '<|im_start|>ipython\n' + (message.content | tojson) + eos_token + '\n' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + message.content + eos_token + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# [TOOL_CALLS] [{"name": ..., "arguments": ..., "id": ...}, ...]: one list of all calls, with ids of nine letters.
LISTED = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{% if message.role == 'user' %}"
    "{% if loop.first and tools %}{{ '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST]\n' + message.content + '[/INST]' }}"
    "{% elif message.tool_calls %}{{ '[TOOL_CALLS] [' }}{% for call in message.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('Ids have nine letters.') }}{% endif %}"
    """{{ '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}"""
    """{{ ', "id": "' + call.id + '"}' }}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' + eos_token }}"""
    "{% elif message.role == 'tool' %}"
    """{{ '[TOOL_RESULTS] {"call_id": "' + message.tool_call_id + '"}\n' + message.content + '[/TOOL_RESULTS]' }}"""
    "{% else %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}"
)

# <function=...><parameter=...>...</parameter></function>: arguments are no JSON.
MARKED_UP = _OFFER + _CHATML.replace(
    "CALLS",
    "{% for call in message.tool_calls or [] %}{{ '<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{% for name, value in call.function.arguments | items %}"
    "{{ '<parameter=' + name + '>\n' + (value if value is string else value | tojson) + '\n</parameter>\n' }}"
    "{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}",
)

# name[ARGS]{...}, with arguments that are given as text.
TERSE = _OFFER + _CHATML.replace(
    "CALLS",
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function.name + '[ARGS]' + call.function.arguments }}{% endfor %}",
)
