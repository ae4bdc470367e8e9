"""Whether kernels start while the one before them still runs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch


@lru_cache
def overlap(device: torch.device) -> dict[str, Any]:
    """Return the options of a launch whose kernel begins with `overlap_kernels.wait_for_inputs`.

    The next kernel's programs are placed while the last ones of this kernel still work; a step
    of a small model has hundreds of kernels of a few microseconds each. Asking for the weights
    before the wait as well was measured, and made every shape slower.

    Programmatic dependent launch (CUDA C++ Programming Guide, the chapter of that name); in force
    from compute capability 9.0 on, also inside recorded graphs.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return {"early": False}
    if torch.cuda.get_device_capability(device) < (9, 0):
        return {"early": False}
    return {"early": True, "launch_pdl": True}
