"""Random numbers that are a pure function of a key and a counter.

There is no generator state: the draw for the i-th token of a request is the same number wherever
and beside whatever it is made. The mixing function is SplitMix64's (Steele, Lea, Flood 2014,
"Fast splittable pseudorandom number generators"), whose i-th output is `mix(key + i * GAMMA)`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_UNIFORM_BITS = 48
"""Few enough that `uniform * total` is always below `total` in float64."""


def mix(value: int) -> int:
    """Scramble 64 bits, one to one."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FACTORS[0]) & _MASK
    value = ((value ^ (value >> 27)) * _FACTORS[1]) & _MASK
    return value ^ (value >> 31)


def derive(seed: int, *path: int) -> int:
    """Return a key of 64 bits for a seed and any numbers that tell its uses apart."""
    key = mix(seed + _GAMMA)
    for number in path:
        key = mix(key + mix(number + _GAMMA))
    return key


def child_seed(seed: int | None, index: int) -> int | None:
    """Return the seed of the index-th completion of a prompt.

    The first one keeps the seed, so that it is what a request for one completion gives.

    Returns:
        A signed 64-bit integer, or None when there is no seed.
    """
    if seed is None or index == 0:
        return seed
    key = derive(seed, index)
    return key - (1 << 64) if key >> 63 else key


def uniforms(keys: ArrayLike, counters: ArrayLike) -> NDArray[np.float64]:
    """Return one number in [0, 1) for each pair of a key and a counter.

    Args:
        keys: N integers of 64 bits, unsigned.
        counters: N integers, 0 or more.
    """
    value = np.asarray(keys, dtype=np.uint64)
    # Arrays wrap around at 64 bits, as wanted.
    value = value + (np.asarray(counters, dtype=np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(_FACTORS[0])
    value = (value ^ (value >> np.uint64(27))) * np.uint64(_FACTORS[1])
    value = value ^ (value >> np.uint64(31))
    return (value >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64) * 2.0**-_UNIFORM_BITS
