"""The names and the meaning of onnxruntime-genai's Python API, over this package's engine.

``import onnx_genai.compat as og`` runs scripts that were written for ``import onnxruntime_genai as og``; what differs
is in ``docs/compat.md``. New programs are shorter with :class:`onnx_genai.LLM`.
"""

from __future__ import annotations

from onnx_genai.compat.adapters import Adapters
from onnx_genai.compat.config import Config
from onnx_genai.compat.environment import (
    disable_telemetry_events,
    enable_telemetry_events,
    get_current_gpu_device_id,
    is_cuda_available,
    is_dml_available,
    is_openvino_available,
    is_qnn_available,
    is_webgpu_available,
    register_execution_provider_library,
    set_current_gpu_device_id,
    set_log_callback,
    set_log_options,
    unregister_execution_provider_library,
)
from onnx_genai.compat.generator import Generator, GeneratorParams
from onnx_genai.compat.model import Model
from onnx_genai.compat.stream import TokenizerStream
from onnx_genai.compat.tensor import NamedTensors, Tensor
from onnx_genai.compat.tokenizer import Tokenizer
from onnx_genai.compat.unsupported import (
    Audios,
    Engine,
    Images,
    MtpGenerator,
    MultiModalProcessor,
    StreamingProcessor,
)

__all__ = [
    "Adapters",
    "Audios",
    "Config",
    "Engine",
    "Generator",
    "GeneratorParams",
    "Images",
    "Model",
    "MtpGenerator",
    "MultiModalProcessor",
    "NamedTensors",
    "StreamingProcessor",
    "Tensor",
    "Tokenizer",
    "TokenizerStream",
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
