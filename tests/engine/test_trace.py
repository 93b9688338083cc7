"""States of requests, and what ONNX Runtime recorded, without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.engine.op_profile import read_op_files
from onnx_genai.engine.profile import Distribution
from onnx_genai.engine.trace import RequestTrack, write_chrome_trace


@pytest.mark.parametrize(
    ("facts", "states"),
    [
        (
            {"queued": 10, "scheduled": 20, "tokens": [(50, 1), (60, 1)], "finished": 70},
            [("queued", 10, 20), ("prefill", 20, 50), ("decode", 50, 70)],
        ),
        ({"queued": 10}, [("queued", 10, 99)]),
        ({"queued": 10, "finished": 30}, [("queued", 10, 30)]),
        ({"queued": 10, "scheduled": 20}, [("queued", 10, 20), ("prefill", 20, 99)]),
        ({"open": 5, "open_state": 0, "scheduled": 20}, [("queued", 1, 20), ("prefill", 20, 99)]),
        ({"open": 5, "open_state": 1, "tokens": [(50, 1)]}, [("prefill", 1, 50), ("decode", 50, 99)]),
        ({"open": 5, "open_state": 2, "tokens": [(50, 1)], "finished": 60}, [("decode", 1, 60)]),
        # Its beginning was among the events that were dropped.
        ({"tokens": [(50, 1)], "finished": 60}, [("prefill", 1, 50), ("decode", 50, 60)]),
        ({"finished": 60}, [("decode", 1, 60)]),
    ],
)
def test_states_cover_what_was_recorded_without_gaps(facts: dict[str, Any], states: list[tuple[str, int, int]]) -> None:
    assert RequestTrack(id=1, **facts).states(1, 99) == states


def write_run(folder: Path, number: int, events: object) -> Path:
    path = folder / f"run{number}_2026-01-01_00-00-00_000.json"
    path.write_text(events if isinstance(events, str) else json.dumps(events), encoding="utf-8")
    return path


def kernel(name: str, start: int, duration: int, op: str = "MatMul") -> dict[str, object]:
    arguments = {"op_name": op, "provider": "CPUExecutionProvider"}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": duration, "tid": 7, "args": arguments}


def test_operators_are_put_into_their_run_and_the_file_is_removed(tmp_path: Path) -> None:
    session = {"cat": "Session", "name": "model_run", "ts": 0, "dur": 90, "tid": 7, "args": {}}
    path = write_run(tmp_path, 3, [session, kernel("a", 10, 20), kernel("b", 90, 50)])

    ops = read_op_files(tmp_path, {3: (1_000_000, 1_100_000)})

    assert not path.exists()
    # The second would end after its run, so it is cut.
    assert [(op.node, op.op, op.start_ns, op.duration_ns, op.run) for op in ops] == [
        ("a", "MatMul", 1_010_000, 20_000, 3),
        ("b", "MatMul", 1_090_000, 10_000, 3),
    ]


def test_files_of_other_runs_stay_and_broken_ones_give_nothing(tmp_path: Path) -> None:
    later = write_run(tmp_path, 5, [kernel("a", 1, 1)])
    broken = write_run(tmp_path, 4, '[{"cat": "Node", ')
    (tmp_path / "notes.txt").write_text("", encoding="utf-8")

    assert read_op_files(tmp_path, {4: (0, 100)}) == []
    assert later.exists()
    assert not broken.exists()


def test_distribution_is_nearest_rank() -> None:
    found = Distribution.of([0.4, 0.1, 0.2, 0.3])

    assert found is not None
    assert (found.count, found.p50, found.p90, found.max) == (4, 0.2, 0.4, 0.4)
    assert found.mean == pytest.approx(0.25)
    assert Distribution.of([]) is None


def test_empty_timeline_is_json(tmp_path: Path) -> None:
    write_chrome_trace(tmp_path / "t.json", [])

    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8")) == {
        "displayTimeUnit": "ms",
        "traceEvents": [],
    }
