"""Finding the chat templates of a package, and the special tokens that they print."""

from __future__ import annotations

from typing import Any

from onnx_genai.errors import PackageError
from onnx_genai.package.fields import Fields
from onnx_genai.package.files import PackageFolder
from onnx_genai.package.model import ChatTemplateSource

__all__ = ["read_chat_template", "read_special_tokens"]

_USUAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""Must be texts, where they are given."""


def read_special_tokens(tokenizer: Fields | None, special_map: Fields | None) -> dict[str, str]:
    """Texts of ``bos_token``, ``image_token`` and all others so named, as a text or an object with ``content``.

    Args:
        tokenizer: tokenizer_config.json, which goes first.
        special_map: special_tokens_map.json.
    """
    found: dict[str, str] = {}
    for fields in (tokenizer, special_map):
        if fields is None:
            continue
        for key in fields.keys_ending("_token"):
            value = fields.raw(key)
            if isinstance(value, dict):
                value = value.get("content")
            # Settings such as add_bos_token share the ending.
            if not isinstance(value, str) and key not in _USUAL:
                continue
            if value is not None and not isinstance(value, str):
                fields.fail(key, "text or an object with 'content'")
            if value is not None:
                found.setdefault(key, value)
    return found


def read_chat_template(folder: PackageFolder, tokenizer: Fields | None, warnings: list[str]) -> ChatTemplateSource:
    """Reads the first of these places that has templates; a default that is missing there comes from the next.

    What later places say differently is a warning.

    1. ``chat_template.jinja`` with ``additional_chat_templates/NAME.jinja``,
    2. ``chat_template`` in tokenizer_config.json: a text, a list of ``{name, template}``, or an object of texts,
    3. the same in chat_template.json.

    Raises:
        PackageError: A file cannot be read, or ``chat_template`` has a wrong type; names file and key.
    """
    places = [_template_files(folder)]
    for name, fields in (("tokenizer_config.json", tokenizer), ("chat_template.json", None)):
        if fields is None and (document := folder.json(name)) is not None:
            fields = Fields(document, folder.root / name)
        value = fields.raw("chat_template") if fields is not None else None
        if fields is None or value is None:
            continue
        texts = {"default": value} if isinstance(value, str) else _named_templates(fields, value)
        places.append((texts, fields.where("chat_template")))
    first = next((texts for texts, _ in places if texts), {})
    default, source = next(((texts["default"], where) for texts, where in places if "default" in texts), (None, ""))
    source = source or next((where for texts, where in places if texts), "")
    for texts, where in places:
        if texts.get("default", default) != default:
            warnings.append(f"{where} differs from {source}, which is used")
    named = {name: text for name, text in first.items() if name != "default"}
    return ChatTemplateSource(default=default, named=named, source=source)


def _template_files(folder: PackageFolder) -> tuple[dict[str, str], str]:
    texts: dict[str, str] = {}
    path = folder.find(["chat_template.jinja"])
    if path is not None:
        texts["default"] = folder.text(path)
    extra = folder.root / "additional_chat_templates"
    if extra.is_dir():
        texts.update((file.stem, folder.text(file)) for file in sorted(extra.glob("*.jinja")))
    return texts, "chat_template.jinja" if path is not None else extra.name


def _named_templates(fields: Fields, value: Any) -> dict[str, str]:
    """Reads a list of ``{name, template}`` or an object of texts."""
    if isinstance(value, list):
        pairs = [(item.get("name"), item.get("template")) for item in value if isinstance(item, dict)]
        complete = len(pairs) == len(value)
    elif isinstance(value, dict):
        pairs, complete = list(value.items()), True
    else:
        pairs, complete = [], False
    if not pairs or not complete or not all(isinstance(name, str) and isinstance(text, str) for name, text in pairs):
        raise PackageError(
            f"{fields.where('chat_template')}: expected text, or a list of objects with 'name' and 'template'"
        )
    return {str(name): str(text) for name, text in pairs}
