"""What a GGUF file says about rotary positions, as transformers' `rope_parameters`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelError
from engine_weights_gguf.dequantize import dequantize
from engine_weights_gguf.reader import GGUFFile

FACTORS = "rope_freqs.weight"
"""A tensor [head size / 2] by which each frequency is divided (Llama 3.1 and later)."""

_DEFAULT_THETA = 10000.0
# Llama 3's rule keeps three numbers besides its factor. The file holds only what follows from
# them; these are the ones of every released model, and the result is compared with the file.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def rope_parameters(file: GGUFFile, head_size: int) -> dict[str, Any]:
    """Return theta and the scaling of the frequencies.

    Args:
        file: an opened file.
        head_size: D; all of a head is rotated.

    Raises:
        ModelError: the scaling is of a kind that isn't supported.
    """
    prefix = f"{file.metadata['general.architecture']}.rope."
    theta = float(file.metadata.get(f"{prefix}freq_base", _DEFAULT_THETA))
    kind = file.metadata.get(f"{prefix}scaling.type", "none")
    factor = float(file.metadata.get(f"{prefix}scaling.factor", 1.0))
    original = file.metadata.get(f"{prefix}scaling.original_context_length")
    if FACTORS in file.tensors:
        return {"rope_theta": theta, **_llama3(file, theta, head_size)}
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn" and isinstance(original, int):
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise ModelError(
        f"{file.path}: {prefix}scaling.type={kind!r} isn't supported as GGUF (supported: none, "
        "linear, yarn with its original_context_length); pass the model's safetensors folder"
    )


def llama3_factors(
    theta: float, head_size: int, factor: float, low: float, high: float, original: float
) -> NDArray[np.float64]:
    """Return by how much Llama 3's rule divides each frequency [head size / 2].

    Wavelengths below original / high stay, those above original / low are divided by `factor`,
    and between the two it is interpolated (Llama 3.1's reference code, `apply_scaling`).
    """
    frequencies = theta ** -(np.arange(0, head_size, 2) / head_size)
    turns = original * frequencies / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / factor + smooth))


def _llama3(file: GGUFFile, theta: float, head_size: int) -> dict[str, Any]:
    info = file.tensors[FACTORS]
    factors = dequantize(file.raw(info), info.type).reshape(-1)
    factor = float(factors.max())
    expected = llama3_factors(theta, head_size, factor, *_LLAMA3.values())
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ModelError(
            f"{file.path}: {FACTORS} doesn't follow Llama 3's rule, the only one supported; pass "
            "the model's safetensors folder"
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
