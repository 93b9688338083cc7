"""Templates in the style of the common model families, each with the prompt that it makes of one conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CONVERSATION", "SHELF", "Entry"]

CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b> & é 😀"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "  Why?\n"},
]


@dataclass(frozen=True)
class Entry:
    source: str
    prompt: str
    """Written by hand from the template's rules."""
    bos_token: str | None = None
    eos_token: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=lambda: CONVERSATION)


SHELF: dict[str, Entry] = {
    "chatml": Entry(
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
        "+ '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b> & é 😀<|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\n  Why?\n<|im_end|>\n<|im_start|>assistant\n",
    ),
    "default_system": Entry(
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}",
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        messages=[{"role": "user", "content": "Hi"}],
    ),
    "header_ids": Entry(
        "{{- bos_token }}\n"
        "{%- if messages[0]['role'] == 'system' %}\n"
        "    {%- set system_message = messages[0]['content']|trim %}\n"
        "    {%- set messages = messages[1:] %}\n"
        "{%- else %}\n"
        '    {%- set system_message = "" %}\n'
        "{%- endif %}\n"
        '{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}\n'
        '{{- "Today Date: " + strftime_now("%d %b %Y") + "\\n\\n" }}\n'
        "{{- system_message }}\n"
        '{{- "<|eot_id|>" }}\n'
        "{%- for message in messages %}\n"
        "    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}\n"
        "        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n"
        "        {{- message['content'] | trim + '<|eot_id|>' }}\n"
        "    {%- endif %}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n"
        "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
        "{%- endif %}\n",
        "<bos><|start_header_id|>system<|end_header_id|>\n\nToday Date: 05 Mar 2024\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi <b> & é 😀<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        bos_token="<bos>",
    ),
    "inst": Entry(
        "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}"
        "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}"
        "{{- bos_token }}{%- for message in loop_messages %}"
        "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{- raise_exception('After the optional system message, roles must alternate user/assistant') }}{%- endif %}"
        "{%- if message['role'] == 'user' %}{%- if loop.last and system_message is defined %}"
        "{{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}"
        "{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
        "{%- elif message['role'] == 'assistant' %}{{- ' ' + message['content'] + eos_token }}{%- endif %}"
        "{%- endfor %}",
        "<s>[INST] Hi <b> & é 😀[/INST] Yes.</s>[INST] Be brief.\n\n  Why?\n[/INST]",
        bos_token="<s>",
        eos_token="</s>",
    ),
    "turns": Entry(
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
        "{% else %}{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}",
        "<bos><start_of_turn>user\nHi <b> & é 😀<end_of_turn>\n<start_of_turn>model\nYes.<end_of_turn>\n"
        "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n",
        bos_token="<bos>",
        messages=CONVERSATION[1:],
    ),
    "role_tags": Entry(
        "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] "
        "+ '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
        "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHi <b> & é 😀<|end|>\n<|assistant|>\nYes.<|end|>\n"
        "<|user|>\n  Why?\n<|end|>\n<|assistant|>\n",
        eos_token="<|endoftext|>",
    ),
    "thinking": Entry(
        "{%- set ns = namespace(last_user=0) %}\n"
        "{%- for message in messages[::-1] %}\n"
        "    {%- set index = (messages|length - 1) - loop.index0 %}\n"
        "    {%- if ns.last_user == 0 and message.role == 'user' %}{%- set ns.last_user = index %}{%- endif %}\n"
        "{%- endfor %}\n"
        "{%- for message in messages %}\n"
        "    {%- set content = message.content %}\n"
        "    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last_user %}\n"
        "        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n"
        "    {%- endif %}\n"
        "    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n"
        "    {{- '<|im_start|>assistant\\n' }}\n"
        "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
        "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
        "    {%- endif %}\n"
        "{%- endif %}",
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
        "<|im_start|>assistant\n",
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "<think>t</think>\n\nx"},
            {"role": "user", "content": "b"},
        ],
    ),
    "macro": Entry(
        "{% macro turn(role, text='') %}\n[{{ role }}]{{ text }}\n{% endmacro %}\n"
        "{% for m in messages %}\n  {{ turn(m.role, m.content | trim) }}\n{% endfor %}\n",
        "  [system]Be brief.\n\n  [user]Hi <b> & é 😀\n\n  [assistant]Yes.\n\n  [user]Why?\n\n",
    ),
}
