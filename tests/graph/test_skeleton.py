"""Loading structure without weights: what is kept, and every way a file can be broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_genai.errors import GenAIError, NotFoundError, PackageError, UnsupportedError
from onnx_genai.graph.skeleton import load
from tests.graph.tiny import FLOAT, HEAD, HIDDEN, INT64, VOCAB, model, save, tail_model, value, weights

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"
node = helper.make_node


def _large(rows: int = 400) -> onnx.ModelProto:
    wide = np.arange(HIDDEN * rows, dtype=np.float32).reshape(HIDDEN, rows)
    embedding = np.ones((rows, HIDDEN), np.float32)
    return tail_model([node("MatMul", ["hidden", "head"], ["logits"])], [weights("head", wide)], embedding=embedding)


def test_weights_inside_become_references_to_their_place(tmp_path: Path) -> None:
    graph = _large()
    path = save(graph, tmp_path) / "model.onnx"

    skeleton = load(path)

    data = path.read_bytes()
    for tensor, original in zip(skeleton.model.graph.initializer, graph.graph.initializer, strict=True):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = int(entries["offset"]), int(entries["length"])
        assert entries["location"] == "model.onnx"
        assert data[offset : offset + length] == original.raw_data
        assert not tensor.raw_data
    assert skeleton.weights_inside == skeleton.weight_bytes == 2 * 400 * HIDDEN * 4
    assert skeleton.external_files == ()


def test_everything_but_large_weights_is_kept(tmp_path: Path) -> None:
    graph = tail_model([node("MatMul", ["hidden", "head"], ["logits"])], [weights("head", HEAD)])
    graph.metadata_props.append(onnx.StringStringEntryProto(key="k", value="v"))

    skeleton = load(save(graph, tmp_path) / "model.onnx")

    assert skeleton.model == graph


def test_external_files_are_listed(tmp_path: Path) -> None:
    save(_large(), tmp_path, external=True)

    skeleton = load(tmp_path / "model.onnx")

    assert skeleton.external_files == (tmp_path / "model.onnx.data",)
    assert skeleton.weights_inside == 0
    assert skeleton.weight_bytes == 2 * 400 * HIDDEN * 4


def _write(data: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(data)

    return change


def _cut(keep: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = (folder / "model.onnx").read_bytes()
        (folder / "model.onnx").write_bytes(data[: int(len(data) * keep)])

    return change


BROKEN_FILES = [
    (_write(b""), "model.onnx: the file is empty"),
    (_write(LFS_POINTER), "Git LFS pointer"),
    (_write(b"<!DOCTYPE html><html>Not found"), "is text, not a binary ONNX model"),
    (_write(b'ir_version: 8\nproducer_name: "x"'), "is text, not a binary ONNX model"),
    (_write(b"\x00" * 100), "no complete ONNX model"),
    (_write(b"\xff" * 100), "no complete ONNX model"),
    (_write(b"\x08\x08"), "no graph found"),
    (_cut(0.5), "past the end at byte"),
    (_cut(0.999), "the file has"),
]


@pytest.mark.parametrize(("change", "text"), BROKEN_FILES)
def test_broken_file_is_a_package_error_that_says_how(
    change: Callable[[Path], None], text: str, tmp_path: Path
) -> None:
    save(_large(), tmp_path)
    change(tmp_path)

    with pytest.raises(PackageError, match=r"model\.onnx") as caught:
        load(tmp_path / "model.onnx")

    assert text in str(caught.value)


def test_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nothing\.onnx"):
        load(tmp_path / "nothing.onnx")


def _short(folder: Path) -> None:
    data = folder / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])


def _gone(folder: Path) -> None:
    (folder / "model.onnx.data").unlink()


def _pointer(folder: Path) -> None:
    (folder / "model.onnx.data").write_bytes(LFS_POINTER)


def _outside(folder: Path) -> None:
    (folder / "model.onnx.data").rename(folder.parent / "elsewhere.data")
    (folder / "model.onnx.data").symlink_to(folder.parent / "elsewhere.data")


BROKEN_DATA = [
    (_short, f"has {2 * 400 * HIDDEN * 4 - 1} bytes, but tensor"),
    (_gone, f"does not exist; expected a file of at least {2 * 400 * HIDDEN * 4} bytes"),
    (_pointer, "Git LFS pointer"),
    (_outside, "outside the package folder"),
]


@pytest.mark.parametrize(("change", "text"), BROKEN_DATA, ids=lambda item: getattr(item, "__name__", ""))
def test_broken_external_data_names_file_and_size(change: Callable[[Path], None], text: str, tmp_path: Path) -> None:
    folder = save(_large(), tmp_path / "package", external=True)
    change(folder)

    with pytest.raises(PackageError, match=r"model\.onnx\.data") as caught:
        load(folder / "model.onnx")

    assert text in str(caught.value)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "C:\\data", "a/../../b", "", "a\0b"])
def test_external_data_outside_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    graph = _large()
    tensor = graph.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)

    save(graph, tmp_path)

    with pytest.raises(PackageError, match="expected a file name relative to the model"):
        load(tmp_path / "model.onnx")


@pytest.mark.parametrize("offset", ["-1", "x", "9" * 30, "1.5"])
def test_external_data_with_a_bad_number_is_refused(offset: str, tmp_path: Path) -> None:
    graph = _large()
    tensor = graph.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", "model.onnx.data"), ("offset", offset)):
        tensor.external_data.add(key=key, value=text)
    save(graph, tmp_path)

    with pytest.raises(PackageError, match="expected a number"):
        load(tmp_path / "model.onnx")


def _strange(name: str) -> onnx.NodeProto:
    return node("Strange", ["hidden"], [name], domain="acme.ops", name="odd_one")


def _in_branch() -> onnx.ModelProto:
    branches = {
        f"{name}_branch": helper.make_graph([_strange(f"{name}_out")], name, [], [value(f"{name}_out", FLOAT, None)])
        for name in ("then", "else")
    }
    yes = weights("yes", np.array(True))
    return tail_model([node("If", ["yes"], ["logits"], **branches)], [yes])


def _in_function() -> onnx.ModelProto:
    graph = tail_model([node("Local", ["hidden"], ["logits"], domain="mine")], [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme.ops", 1)]
    inner = node("Strange", ["x"], ["y"], domain="acme.ops", name="odd_one")
    graph.functions.append(helper.make_function("mine", "Local", ["x"], ["y"], [inner], opsets))
    graph.opset_import.append(helper.make_opsetid("mine", 1))
    return graph


@pytest.mark.parametrize(
    "build", [lambda: tail_model([_strange("logits")], []), _in_branch, _in_function], ids=["top", "branch", "function"]
)
def test_operator_of_an_unknown_domain_is_named(build: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    graph = build()
    graph.opset_import.append(helper.make_opsetid("acme.ops", 1))
    save(graph, tmp_path)

    with pytest.raises(UnsupportedError, match=r"odd_one.* operator Strange of the domain 'acme.ops'"):
        load(tmp_path / "model.onnx")


def test_operator_that_a_local_function_defines_is_known(tmp_path: Path) -> None:
    graph = _in_function()
    graph.functions[0].node[0].domain = ""
    graph.functions[0].node[0].op_type = "Identity"
    del graph.functions[0].opset_import[1]

    assert load(save(graph, tmp_path) / "model.onnx").model.functions


def test_imported_domain_without_nodes_is_no_error(tmp_path: Path) -> None:
    graph = model([], [value("input_ids", INT64, ("b", "s"))], [value("logits", FLOAT, ("b", "s", VOCAB))])
    graph.opset_import.append(helper.make_opsetid("acme.ops", 1))

    load(save(graph, tmp_path) / "model.onnx")


def test_file_cut_at_any_byte_gives_a_typed_error(tmp_path: Path) -> None:
    graph = tail_model([node("MatMul", ["hidden", "head"], ["logits"])], [weights("head", HEAD)])
    data = graph.SerializeToString()
    path = tmp_path / "model.onnx"

    for length in range(len(data)):
        path.write_bytes(data[:length])
        try:
            load(path)
        except GenAIError:
            continue
        # What ends between two fields after the graph is a shorter, sound model.
        assert onnx.ModelProto.FromString(data[:length]).HasField("graph")
