"""Reads the header of a GGUF file and gives its tensors' bytes as views of the mapped file.

The `gguf` package has a reader too. It makes a numpy array of every string, 150,000 of them in a
model of a small vocabulary, and takes seconds where this takes a tenth of one; and it doesn't
check that the data it points at is there. The format is given in ggml's docs/gguf.md; the numbers
of types and the sizes of blocks are taken from the package.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from engine.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_SCALARS: Mapping[int, str] = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.FLOAT64: "<f8",
    GGUFValueType.BOOL: "?",
}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies and what it is made of.

    Attributes:
        name: as the file names it.
        shape: outermost axis first (the file lists the fastest axis first).
        type: how its elements are packed.
        offset: of its first byte, in the file.
        size: bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    size: int


class GGUFFile:
    """One file, mapped into memory.

    Attributes:
        path: the file.
        metadata: keys and values; numbers, strings, booleans and lists of them.
        tensors: by name, in the file's order.
    """

    def __init__(self, path: Path) -> None:
        """Map the file and read its header.

        Raises:
            ModelError: it is unreadable, no GGUF file, of another version, or truncated.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file can't be mapped
            raise ModelError(f"{path}: cannot be read: {error}") from error
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            self._read_header(_Cursor(self._map))
        except (struct.error, IndexError, UnicodeDecodeError, RecursionError) as error:
            raise ModelError(
                f"{path}: its header is truncated or corrupt; copy it again"
            ) from error

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Return a tensor's packed bytes [rows, bytes of a row], read-only, without a copy."""
        data = np.frombuffer(self._map, np.uint8, count=info.size, offset=info.offset)
        rows = int(np.prod(info.shape[:-1], dtype=np.int64))
        return data.reshape(rows, info.size // rows)

    def _read_header(self, at: _Cursor) -> None:
        if self._map[:4] != _MAGIC:
            raise ModelError(f"{self.path}: is no GGUF file")
        at.skip(4)
        version = at.number("<I")
        if version not in _VERSIONS:
            big_endian = version >= 2**16
            detail = "is big-endian" if big_endian else f"has GGUF version {version}"
            raise ModelError(f"{self.path}: {detail}; convert it to version 3, little-endian")
        num_tensors, num_values = at.number("<Q"), at.number("<Q")
        for _ in range(num_values):
            key = at.string()
            self.metadata[key] = at.value(at.number("<I"))
        infos = [self._read_info(at) for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{self.path}: general.alignment={alignment!r} is no alignment")
        start = -(-at.offset // alignment) * alignment
        for info in infos:
            self._add(info, start)

    def _read_info(self, at: _Cursor) -> TensorInfo:
        name = at.string()
        num_axes = at.number("<I")
        shape = tuple(at.number("<Q") for _ in range(num_axes))[::-1]
        number, offset = at.number("<I"), at.number("<Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise ModelError(
                f"{self.path}: tensor {name!r} has the unknown type {number}; upgrade gguf, or "
                "convert the file to another quantisation"
            ) from error
        block, size = GGML_QUANT_SIZES[kind]
        if not shape or 0 in shape or shape[-1] % block:
            raise ModelError(
                f"{self.path}: tensor {name!r} of type {kind.name} can't have shape {list(shape)}"
            )
        elements = 1
        for length in shape:
            elements *= length
        return TensorInfo(name, shape, kind, offset, elements // block * size)

    def _add(self, info: TensorInfo, start: int) -> None:
        end = start + info.offset + info.size
        if end > len(self._map):
            raise ModelError(
                f"{self.path}: is truncated: tensor {info.name!r} ends at byte {end}, the file at "
                f"{len(self._map)}; copy it again"
            )
        if info.name in self.tensors:
            raise ModelError(f"{self.path}: holds tensor {info.name!r} twice")
        self.tensors[info.name] = TensorInfo(
            info.name, info.shape, info.type, start + info.offset, info.size
        )


class _Cursor:
    """A position in the header; every read moves it on and fails beyond the file's end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 0

    def skip(self, size: int) -> int:
        """Move on and return the former position."""
        start = self.offset
        self.offset += size
        if self.offset > len(self._data):
            raise IndexError(self.offset)
        return start

    def number(self, form: str) -> int:
        """Read one integer (`<I`, `<Q`)."""
        start = self.skip(struct.calcsize(form))
        return int(struct.unpack_from(form, self._data, start)[0])

    def string(self) -> str:
        """Read a length and that many bytes of UTF-8."""
        size = self.number("<Q")
        start = self.skip(size)
        return self._data[start : start + size].decode("utf-8")

    def value(self, kind: int) -> Any:
        """Read a value of a numbered kind."""
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            element, count = self.number("<I"), self.number("<Q")
            if element in _SCALARS:
                return self._scalars(element, count)
            return [self.value(element) for _ in range(count)]
        if kind not in _SCALARS:
            raise IndexError(kind)
        return self._scalars(kind, 1)[0]

    def _scalars(self, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(_SCALARS[kind])
        start = self.skip(dtype.itemsize * count)
        values = np.frombuffer(self._data, dtype, count=count, offset=start)
        if kind == GGUFValueType.FLOAT32:
            # The shortest decimal of the same float32: 1e-05 rather than 9.999999747378752e-06.
            return [float(str(value)) for value in values]
        return list(values.tolist())
