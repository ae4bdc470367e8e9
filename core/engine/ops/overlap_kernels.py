"""What a Triton kernel does that starts while the kernel before it still runs."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_inputs(early: tl.constexpr):
    """Wait for all that the kernels before this one wrote, then let the next one be placed.

    The first thing that every program of such a kernel calls, before it reads or writes anything:
    a kernel that ended without waiting would let the next one start too early.
    """
    if early:
        gdc_wait()
        gdc_launch_dependents()
