"""The instruction sets that the kernels are written for, each for the sessions of a test."""

from __future__ import annotations

import pytest

from tests.kernels.operator import Node, make_session

ISAS = ("plain", "neon", "neondot", "neoni8mm", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx")
ATTENTION_ISAS = ("plain", "neon", "avx2", "avx512", "avx512bf16")
"""Those for which attention has variants of its own, but for rows of prompts."""
PROMPT_ISAS = ("avx512bf16", "amx")
"""Those for which it has variants for rows of prompts."""


def _supported(isa: str) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_GENAI_CPU_ISA", isa)
        try:
            make_session(Node().model())
        except Exception as error:
            if "ONNX_GENAI_CPU_ISA" not in str(error):
                raise
            return False
    return True


def _choose(isa: str, monkeypatch: pytest.MonkeyPatch) -> str:
    if not _supported(isa):
        pytest.skip(f"this CPU or build has no {isa}")
    monkeypatch.setenv("ONNX_GENAI_CPU_ISA", isa)
    return isa


@pytest.fixture(params=ATTENTION_ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that this CPU has and attention has variants for."""
    return _choose(str(request.param), monkeypatch)


@pytest.fixture(params=PROMPT_ISAS)
def prompt_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that this CPU has and attention has variants for rows of prompts for."""
    return _choose(str(request.param), monkeypatch)


@pytest.fixture(params=ISAS)
def any_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that this CPU has."""
    return _choose(str(request.param), monkeypatch)
