"""Unpacks quantised tensors to float32 with the `gguf` package's own arithmetic."""

from __future__ import annotations

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as unpack
from numpy.typing import NDArray


def can_unpack(kind: GGMLQuantizationType) -> bool:
    """Say whether the package can unpack this type; asked by unpacking one block of zeros."""
    _, size = GGML_QUANT_SIZES[kind]
    try:
        unpack(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def dequantize(rows: NDArray[np.uint8], kind: GGMLQuantizationType) -> NDArray[np.float32]:
    """Return rows [N, bytes] of whole blocks of type `kind` as new float32 rows [N, elements].

    Raises:
        NotImplementedError: the package can't unpack the type.
    """
    values: NDArray[np.float32] = unpack(rows, kind)
    # Types that need no arithmetic come back as a view of the mapped, read-only file.
    return values if values.flags.writeable else values.copy()
