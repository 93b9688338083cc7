"""What scripts ask of the module itself: providers, devices, logging, telemetry."""

from __future__ import annotations

from collections.abc import Callable

from onnx_genai.compat.unsupported import refuse
from onnx_genai.engine import find_ort_library
from onnx_genai.errors import InvalidArgumentError

__all__ = [
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_current_gpu_device_id",
    "is_cuda_available",
    "is_dml_available",
    "is_openvino_available",
    "is_qnn_available",
    "is_webgpu_available",
    "register_execution_provider_library",
    "set_current_gpu_device_id",
    "set_log_callback",
    "set_log_options",
    "unregister_execution_provider_library",
]

_SWITCHES = frozenset(
    {"enabled", "ansi_tags", "warning", "generate_next_token", "append_next_tokens", "hit_eos", "hit_max_length"}
    | {"model_input_values", "model_output_values", "model_output_shapes", "model_logits", "value_stats", "ort_lib"}
)


def is_cuda_available() -> bool:
    """Whether the ONNX Runtime in use has the CUDA provider."""
    return _has("CUDAExecutionProvider")


def is_dml_available() -> bool:
    """Whether it has DirectML."""
    return _has("DmlExecutionProvider")


def is_openvino_available() -> bool:
    """Whether it has OpenVINO."""
    return _has("OpenVINOExecutionProvider")


def is_qnn_available() -> bool:
    """Whether it has QNN."""
    return _has("QNNExecutionProvider")


def is_webgpu_available() -> bool:
    """Whether it has WebGPU."""
    return _has("WebGpuExecutionProvider")


def get_current_gpu_device_id() -> int:
    """Always 0; another device is chosen with ``Config.set_provider_option(provider, "device_id", "1")``."""
    return 0


def set_current_gpu_device_id(device_id: int) -> None:
    """Takes 0 only; see :func:`get_current_gpu_device_id`."""
    if device_id != 0:
        refuse(
            f"set_current_gpu_device_id({device_id})",
            'the device belongs to a model; use config.set_provider_option("cuda", "device_id", "...")',
        )


def set_log_options(**options: object) -> None:
    """Checks the options and does nothing else: this package writes no log of its own.

    Raises:
        InvalidArgumentError: An unknown option, or a value of the wrong type.
    """
    for name, value in options.items():
        if name == "filename":
            if not isinstance(value, str):
                raise InvalidArgumentError(f"filename is {value!r}; allowed: a path")
        elif name not in _SWITCHES:
            raise InvalidArgumentError(f"{name} is no log option; there are: {', '.join(sorted(_SWITCHES))}, filename")
        elif not isinstance(value, bool):
            raise InvalidArgumentError(f"{name} is {value!r}; allowed: True or False")


def set_log_callback(callback: Callable[..., object] | None) -> None:
    """Takes a callback, which is never called: this package writes no log of its own."""
    if callback is not None and not callable(callback):
        raise InvalidArgumentError(f"callback is {callback!r}; allowed: a function, or None")


def enable_telemetry_events() -> None:
    """Does nothing: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Does nothing: there is no telemetry."""


def register_execution_provider_library(name: str, path: str) -> None:
    """Raises ``UnsupportedError``: providers are those of the installed ONNX Runtime."""
    refuse(
        "register_execution_provider_library",
        "providers come from the installed ONNX Runtime; install the package of onnxruntime that has yours",
    )


def unregister_execution_provider_library(name: str) -> None:
    """Raises ``UnsupportedError``; see :func:`register_execution_provider_library`."""
    refuse("unregister_execution_provider_library", "no provider library can be registered")


def _has(provider: str) -> bool:
    return provider in find_ort_library().providers
