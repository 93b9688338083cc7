"""A conversation as a JSON file: :func:`save_conversation`, :func:`load_conversation`.

The file is one object:

* ``format``: ``onnx-genai-conversation``; ``version``: 1
* ``model``: the MODEL it was held with; only shown when it is loaded
* ``system``: text or null; ``messages``: objects with ``role`` (``user``, ``assistant``, ``tool``), ``content``, and
  ``tool_calls`` or ``tool_call_id`` as in OpenAI's chat format
* ``branch``: name of the current branch; ``branches``: messages of the others, by name
* ``settings``: values of `/set`, by name; ``raw``: whether templating is off
* ``kv``: name of a file beside this one with the computed context, or null
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_genai.cli.repl.conversation import Conversation
from onnx_genai.errors import InvalidArgumentError, NotFoundError

__all__ = ["FORMAT", "SavedConversation", "load_conversation", "save_conversation"]

FORMAT = "onnx-genai-conversation"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedConversation:
    """What a file holds."""

    model: str
    conversation: Conversation
    settings: dict[str, Any]
    raw: bool = False
    kv: Path | None = None


def save_conversation(path: Path, saved: SavedConversation) -> None:
    """Writes the file as a whole or not at all; only its owner may read it.

    Raises:
        InvalidArgumentError: It cannot be written there.
    """
    value = {
        "format": FORMAT,
        "version": VERSION,
        "model": saved.model,
        **saved.conversation.as_dict(),
        "settings": saved.settings,
        "raw": saved.raw,
        "kv": None if saved.kv is None else saved.kv.name,
    }
    text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be written: {error.strerror}; choose another place") from error


def load_conversation(path: Path) -> SavedConversation:
    """Reads a file.

    Raises:
        NotFoundError: There is none.
        InvalidArgumentError: It is no conversation, or of a later version.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist; /save FILE writes one") from error
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is no JSON text in UTF-8; take a file that /save wrote") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InvalidArgumentError(
            f"{path} is no saved conversation (no format {FORMAT!r}); take a file that /save wrote"
        )
    if value.get("version") != VERSION:
        raise InvalidArgumentError(
            f"{path} has the version {value.get('version')!r}; this program reads {VERSION}: update onnx-genai"
        )
    settings, kv = value.get("settings", {}), value.get("kv")
    if not isinstance(settings, dict):
        raise InvalidArgumentError(f"{path}: settings is no object; take a file that /save wrote")
    try:
        conversation = Conversation.from_dict(value)
    except (InvalidArgumentError, TypeError) as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    return SavedConversation(
        model=str(value.get("model", "")),
        conversation=conversation,
        settings=settings,
        raw=value.get("raw") is True,
        # The file stands beside this one; a path in the name is not followed.
        kv=path.parent / Path(kv).name if isinstance(kv, str) and kv else None,
    )
