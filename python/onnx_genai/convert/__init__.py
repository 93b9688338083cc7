"""Making ONNX packages from other formats: GGUF files, and checkpoints of encoders."""

from __future__ import annotations

from onnx_genai.convert.architectures import ARCHITECTURES
from onnx_genai.convert.encoder import EncoderReport, import_encoder
from onnx_genai.convert.importer import DTYPES, ImportReport, import_gguf
from onnx_genai.convert.weights import Progress, TensorReport

__all__ = [
    "ARCHITECTURES",
    "DTYPES",
    "EncoderReport",
    "ImportReport",
    "Progress",
    "TensorReport",
    "import_encoder",
    "import_gguf",
]
