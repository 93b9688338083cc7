"""The chat behind ``onnx-genai run``: what is said, what is shown, what is typed, and the commands."""

from __future__ import annotations
