"""A package that says another text in each turn of a conversation; for agents, which go on by what a model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken

from tests.models import scripted
from tests.models.packages import scripted_facts, write_package
from tests.models.texts import BYTE_LEVEL_SPECIALS, byte_level_tokenizer

__all__ = ["write_dialogue_package"]

TURN = "<|assistant|>"
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Answer with <tool_call>{...}</tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>\n{{ call['function'] | tojson }}\n</tool_call>\n"
    "{% endfor %}{% else %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Each answer, and nothing else, begins with the special token `TURN`."""


def write_dialogue_package(folder: Path, answers: Sequence[str], *, context_length: int = 8192) -> Path:
    """A package whose n-th answer in a conversation is ``answers[n]``; see `build_dialogue`. Returns `folder`."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(TURN, special=True, normalized=False)])
    end = BYTE_LEVEL_SPECIALS[2]
    facts = replace(
        scripted_facts(tokenizer, tokenizer.get_vocab_size(), context_length),
        eos=tokenizer.token_to_id(end),
        eos_token=end,
        chat_template=TEMPLATE,
    )
    ids = [tokenizer.encode(answer).ids for answer in answers]
    model = scripted.build_dialogue(
        ids, tokenizer.get_vocab_size(), tokenizer.token_to_id(end), tokenizer.token_to_id(TURN)
    )
    return write_package(folder, model, facts, "optimum")
