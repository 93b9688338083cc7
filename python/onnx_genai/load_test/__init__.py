"""Load on a server with OpenAI's interface, from the outside: requests in an open loop, and what they took.

It knows nothing of this project's server, and works against any other.
"""

from __future__ import annotations

from onnx_genai.load_test.answer import Endpoint, Outcome, Target
from onnx_genai.load_test.arrivals import arrival_times
from onnx_genai.load_test.dataset import Sample, jsonl_samples, open_tokenizer, random_samples, sharegpt_samples
from onnx_genai.load_test.http import HttpClient, NoAnswerError
from onnx_genai.load_test.report import Goals, Report
from onnx_genai.load_test.run import Load, first_model, run_load

__all__ = [
    "Endpoint",
    "Goals",
    "HttpClient",
    "Load",
    "NoAnswerError",
    "Outcome",
    "Report",
    "Sample",
    "Target",
    "arrival_times",
    "first_model",
    "jsonl_samples",
    "open_tokenizer",
    "random_samples",
    "run_load",
    "sharegpt_samples",
]
