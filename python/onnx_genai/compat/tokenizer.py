"""Text to ids and back: :class:`Tokenizer`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_genai.compat.config import Config, config_of
from onnx_genai.compat.model import Model
from onnx_genai.compat.stream import TokenizerStream
from onnx_genai.compat.tensor import Tensor
from onnx_genai.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from onnx_genai.template import ChatTemplate
from onnx_genai.tokenizer import Tokenizer as PlainTokenizer
from onnx_genai.tokenizer import TokenTableData

__all__ = ["Tokenizer"]

_TEMPLATE_OWN = frozenset({"messages", "documents", "continue_final_message"})


class Tokenizer:
    """The tokenizer of a package: ``tokenizer.json`` decides, as in the Hugging Face library.

    Unlike there, ``encode`` adds no special tokens unless ``update_options(add_special_tokens=True)`` says so, and
    ``decode`` leaves special tokens out.

    Args:
        source: A :class:`Model`, a :class:`Config`, or the path of a package folder.

    Raises:
        NotFoundError, PackageError: There is no such package, or it has no tokenizer.
    """

    def __init__(self, source: Model | Config | str | Path) -> None:
        config = source.config if isinstance(source, Model) else config_of(source)
        self._package = source.package if isinstance(source, Model) else config.text_package()
        self._document = config.document
        self._plain = PlainTokenizer.from_file(self._package.require_tokenizer())
        self._add_special = False
        self._skip_special = True

    @property
    def bos_token_id(self) -> int:
        """Id of the token that begins a text.

        Raises:
            NotFoundError: The package has none.
        """
        return self._stated("bos_token_id", self._package.bos_token_id, self._plain.bos_id)

    @property
    def eos_token_ids(self) -> npt.NDArray[np.int32]:
        """Ids that end an answer, the main one first: int32 ``[count]``."""
        return np.asarray(self._package.eos_token_ids or self._plain.eos_candidates(), dtype=np.int32)

    @property
    def pad_token_id(self) -> int:
        """Id that :meth:`encode_batch` pads with: the package's, else that of the tokenizer, else the first end id.

        Raises:
            NotFoundError: The package has none of them.
        """
        ends = self._package.eos_token_ids
        return self._stated("pad_token_id", self._package.pad_token_id, self._plain.pad_id, *ends[:1])

    @property
    def bot_token_id(self) -> int:
        """Id that begins a tool call; ``NotFoundError`` where genai_config.json states none."""
        return self._stated("bot_token_id")

    @property
    def eot_token_id(self) -> int:
        """Id that ends a tool call; ``NotFoundError`` where genai_config.json states none."""
        return self._stated("eot_token_id")

    @property
    def bor_token_id(self) -> int:
        """Id that begins reasoning; ``NotFoundError`` where genai_config.json states none."""
        return self._stated("bor_token_id")

    @property
    def eor_token_id(self) -> int:
        """Id that ends reasoning; ``NotFoundError`` where genai_config.json states none."""
        return self._stated("eor_token_id")

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Token ids of a text: int32 ``[count]``."""
        return np.asarray(self._plain.encode(text, add_special_tokens=self._add_special), dtype=np.int32)

    def decode(self, ids: int | Iterable[int] | npt.NDArray[Any] | Tensor) -> str:
        """Text of one row of ids, or of one id.

        Raises:
            InvalidArgumentError: Several rows (see :meth:`decode_batch`), or an id that is not in the vocabulary.
        """
        array = ids.as_numpy() if isinstance(ids, Tensor) else ids
        if isinstance(array, (int, np.integer)):
            array = [int(array)]
        elif isinstance(array, np.ndarray):
            if array.ndim > 1:
                raise InvalidArgumentError(f"ids has shape {array.shape}; allowed: one row (several: decode_batch)")
            array = array.reshape(-1).tolist()
        return self._plain.decode(array, skip_special_tokens=self._skip_special)

    def encode_batch(self, texts: Sequence[str]) -> Tensor:
        """Token ids of several texts: int32 ``[batch, longest]``, padded on the right with ``pad_token_id``.

        The tensor remembers what is padding, so a text that ends in the pad token keeps it.

        Raises:
            InvalidArgumentError: No texts, or a single text instead of a list.
        """
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence) or not texts:
            raise InvalidArgumentError(f"texts is {texts!r:.80}; allowed: a list of at least one text")
        rows = [self._plain.encode(text, add_special_tokens=self._add_special) for text in texts]
        width = max(len(row) for row in rows)
        ragged = any(len(row) != width for row in rows)
        ids = np.full((len(rows), width), self.pad_token_id if ragged else 0, dtype=np.int32)
        mask = np.zeros((len(rows), width), dtype=np.bool_)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
            mask[index, : len(row)] = True
        return Tensor(ids, mask=mask)

    def decode_batch(self, ids: Tensor | npt.NDArray[Any] | Sequence[Sequence[int]]) -> list[str]:
        """Texts of several rows, without the padding of :meth:`encode_batch`."""
        mask = ids.mask if isinstance(ids, Tensor) else None
        rows = ids.as_numpy() if isinstance(ids, Tensor) else ids
        if isinstance(rows, np.ndarray) and rows.ndim != 2:
            raise InvalidArgumentError(f"ids has shape {rows.shape}; allowed: [batch, seq] (one row: decode)")
        if mask is not None:
            rows = [row[kept] for row, kept in zip(np.asarray(rows), mask, strict=True)]
        return [self.decode(row) for row in rows]

    def to_token_id(self, token: str) -> int:
        """Id of a token as it is written in the vocabulary.

        Raises:
            NotFoundError: There is no such token.
        """
        found = self._plain.token_to_id(token) if isinstance(token, str) else None
        if found is None:
            raise NotFoundError(f"{token!r} is no token of {self._package.tokenizer_path}")
        return found

    @cached_property
    def _table(self) -> TokenTableData:
        return self._plain.token_table()

    def create_stream(self) -> TokenizerStream:
        """A new stream of text from ids, with the options that hold now."""
        return TokenizerStream(
            self._table, skip_special_tokens=self._skip_special, ends=[int(token) for token in self.eos_token_ids]
        )

    def update_options(self, **options: bool | str) -> None:
        """Sets ``add_special_tokens`` (of ``encode``) and ``skip_special_tokens`` (of ``decode`` and new streams).

        Raises:
            InvalidArgumentError: Another option, or a value that is no truth value (True, False, "true", "false").
        """
        values = {name: _truth(name, value) for name, value in options.items()}
        unknown = sorted(values.keys() - {"add_special_tokens", "skip_special_tokens"})
        if unknown:
            raise InvalidArgumentError(f"{unknown[0]} is no option; there are: add_special_tokens, skip_special_tokens")
        self._add_special = values.get("add_special_tokens", self._add_special)
        self._skip_special = values.get("skip_special_tokens", self._skip_special)

    def apply_chat_template(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        template_str: str | None = None,
        tools: str | Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """The prompt text of a conversation.

        Args:
            messages: A list of messages, or the JSON text of one.
            template_str: A template instead of the package's.
            tools: A list of tools, or the JSON text of one; empty text is none.
            add_generation_prompt: Whether the assistant's turn is opened.
            **template_kwargs: Further variables of the template, such as ``enable_thinking``.

        Raises:
            InvalidArgumentError: No list of messages, or the template cannot take them.
            UnsupportedError: The package has no template, and none is given.
        """
        wrong = sorted(_TEMPLATE_OWN & template_kwargs.keys())
        if wrong:
            raise InvalidArgumentError(f"{wrong[0]} cannot be a variable of the template; leave it out")
        return self._template(template_str or None).render(
            _parsed("messages", messages),
            tools=None if tools is None or tools == "" else _parsed("tools", tools),
            add_generation_prompt=add_generation_prompt,
            **template_kwargs,
        )

    def _template(self, text: str | None) -> ChatTemplate:
        stated = self._package.chat_template
        if text is None and not stated.texts:
            raise UnsupportedError(
                f"{self._package.root} has no chat template; give one: apply_chat_template(..., template_str=TEXT)"
            )
        source = stated.texts if text is None else text
        name = "template_str" if text is not None else stated.source
        return ChatTemplate(source, special_tokens=self._package.special_tokens, name=name)

    def _stated(self, name: str, *candidates: int | None) -> int:
        """The first id that is there; without candidates the one in genai_config.json."""
        model = self._document.get("model")
        value = model.get(name) if isinstance(model, Mapping) and not candidates else None
        found = value if isinstance(value, int) else next((each for each in candidates if each is not None), None)
        if found is None:
            raise NotFoundError(f"the package {self._package.root} states no {name}")
        return found


def _truth(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "True", "1"):
        return True
    if value in ("false", "False", "0"):
        return False
    raise InvalidArgumentError(f"{name} is {value!r}; allowed: True, False, 'true' or 'false'")


def _parsed(name: str, value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} is no JSON text ({error}); give a list, or json.dumps of one") from error
