"""The header reader: equal to the gguf package's, and a sentence for every broken file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ModelError
from engine_weights_gguf.reader import GGUFFile

FLOATS = st.floats(width=32, allow_nan=False)
SCALARS = st.one_of(
    st.integers(0, 2**32 - 1), st.booleans(), FLOATS, st.text(max_size=20), st.just("")
)
ARRAYS = st.one_of(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5),
    st.lists(st.text(max_size=9), min_size=1, max_size=5),
    st.lists(FLOATS, min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=1, max_size=5),
)


def write(path: Path, values: dict[str, Any], tensors: dict[str, Any], alignment: int = 32) -> Path:
    writer = GGUFWriter(path, "llama")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for key, value in values.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def small_file(path: Path) -> Path:
    rng = np.random.default_rng()
    tensors = {
        "a": rng.standard_normal((3, 8), dtype=np.float32),
        "b": rng.standard_normal(5, dtype=np.float32).astype(np.float16),
    }
    values = {
        "general.name": "tiny",
        "llama.block_count": 2,
        "x": ["ä", ""],
        "y": [1, -2],
        "z": 0.1,
    }
    return write(path, values, tensors)


def assert_same_as_the_package(path: Path) -> None:
    ours, theirs = GGUFFile(path), GGUFReader(path)
    fields = {k: v for k, v in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata.keys() == fields.keys()
    for key, entry in fields.items():
        assert np.array_equal(
            np.asarray(ours.metadata[key], dtype=np.asarray(entry.contents()).dtype),
            np.asarray(entry.contents()),
        ) or ours.metadata[key] == pytest.approx(entry.contents(), rel=1e-7), key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.type == tensor.tensor_type
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert np.array_equal(ours.raw(info).reshape(-1), tensor.data.view(np.uint8).reshape(-1))


def test_the_demo_file_reads_as_the_package_reads_it(demo: Path) -> None:
    assert_same_as_the_package(demo)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    values=st.dictionaries(st.text("abc.", min_size=1, max_size=6), st.one_of(SCALARS, ARRAYS)),
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=3),
    alignment=st.sampled_from([8, 32, 64]),
)
def test_any_file_reads_as_the_package_reads_it(
    tmp_path: Path, values: dict[str, Any], shapes: list[list[int]], alignment: int
) -> None:
    rng = np.random.default_rng(1)
    tensors = {f"t{i}": rng.standard_normal(s, dtype=np.float32) for i, s in enumerate(shapes)}
    assert_same_as_the_package(write(tmp_path / "any.gguf", values, tensors, alignment))


def test_a_float_is_the_shortest_decimal_of_its_float32(tmp_path: Path) -> None:
    file = write(tmp_path / "a.gguf", {"eps": 1e-5, "theta": 500000.0, "half": 0.5}, {})
    values = GGUFFile(file).metadata
    assert (values["eps"], values["theta"], values["half"]) == (1e-5, 500000.0, 0.5)


def test_raw_bytes_are_a_read_only_view(tmp_path: Path) -> None:
    file = GGUFFile(small_file(tmp_path / "a.gguf"))
    raw = file.raw(file.tensors["a"])
    assert raw.shape == (3, 32)
    assert not raw.flags.owndata
    assert not raw.flags.writeable


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_cut_anywhere_is_said_to_be_truncated(tmp_path: Path) -> None:
    whole = small_file(tmp_path / "whole.gguf")
    data = whole.read_bytes()
    info = GGUFFile(whole).tensors["b"]
    cut = tmp_path / "cut.gguf"
    for size in range(4, info.offset + info.size):
        cut.write_bytes(data[:size])
        assert "truncated" in refusal(cut), size
    cut.write_bytes(data[: info.offset + info.size])
    GGUFFile(cut)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_flipped_bytes_in_the_header_never_end_in_another_kind_of_error(
    tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "flipped.gguf"
    content = bytearray(small_file(path).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        file = GGUFFile(path)
    except ModelError:
        return
    for info in file.tensors.values():
        file.raw(info)


def test_a_missing_an_empty_and_a_foreign_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    assert "cannot be read" in refusal(path)
    path.touch()
    assert "cannot be read" in refusal(path)
    path.write_bytes(b"PK\x03\x04" * 20)
    assert "is no GGUF file" in refusal(path)


@pytest.mark.parametrize(
    ("version", "said"),
    [(1, "has GGUF version 1"), (4, "has GGUF version 4"), (3 << 24, "is big-endian")],
)
def test_another_version_or_byte_order_says_what_to_convert_to(
    tmp_path: Path, version: int, said: str
) -> None:
    path = small_file(tmp_path / "a.gguf")
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", version)
    path.write_bytes(data)
    assert said in refusal(path)
    assert "convert it to version 3, little-endian" in refusal(path)


def test_an_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    array = np.zeros((2, 32), np.uint8)
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("odd", array, raw_shape=(2, 32), raw_dtype=GGMLQuantizationType.I8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = path.read_bytes()
    at = data.index(b"odd") + 3 + 4 + 16
    path.write_bytes(data[:at] + struct.pack("<I", 9999) + data[at + 4 :])
    assert "tensor 'odd' has the unknown type 9999" in refusal(path)


def test_a_zero_alignment_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {}, {}, alignment=64)
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<I", 64), struct.pack("<I", 0)))
    assert "general.alignment=0" in refusal(path)
