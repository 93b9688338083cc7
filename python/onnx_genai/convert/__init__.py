"""Making ONNX packages from other formats: today GGUF files."""

from __future__ import annotations

from onnx_genai.convert.architectures import ARCHITECTURES
from onnx_genai.convert.importer import DTYPES, ImportReport, import_gguf
from onnx_genai.convert.weights import Progress, TensorReport

__all__ = ["ARCHITECTURES", "DTYPES", "ImportReport", "Progress", "TensorReport", "import_gguf"]
