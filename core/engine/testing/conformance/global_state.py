"""Everything of a process that a plugin must leave as it found it."""

from __future__ import annotations

import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.forward_context import active
from engine.testing.conformance.suite import ask

_CONFIGURATIONS = {
    "torch._dynamo.config": "dynamo",
    "torch._inductor.config": "inductor",
    "torch._functorch.config": "functorch",
    "torch.fx.experimental._config": "symbolic shapes",
}


def _state() -> dict[str, Any]:
    """Return what is global, by a name that a message can use."""
    found: dict[str, Any] = {
        "torch's random numbers": torch.get_rng_state().tolist(),
        "Python's random numbers": random.getstate(),
        "numpy's random numbers": str(np.random.get_state()),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "number of threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "working directory": Path.cwd(),
        "sys.path": tuple(sys.path),
        "warning filters": tuple(warnings.filters),
        "level of the root logger": logging.getLogger().level,
        "forward context": active(),
    }
    found |= {f"environment variable {name}": value for name, value in os.environ.items()}
    for module, label in _CONFIGURATIONS.items():
        settings = import_module(module).get_config_copy()
        found |= {f"{label} setting {name}": value for name, value in settings.items()}
    return found


@contextmanager
def unchanged(what: str) -> Iterator[None]:
    """Ask that a block leaves the process as it was, whether or not it raises.

    Raises:
        ContractError: names what changed; what can be put back is.
    """
    before = _state()
    kept = dict(os.environ)
    try:
        yield
    finally:
        after = _state()
        changed = sorted(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        )
        if os.environ != kept:
            os.environ.clear()
            os.environ.update(kept)
        if changed:
            name = changed[0]
            more = f" ({len(changed) - 1} more: {', '.join(changed[1:5])})" if changed[1:] else ""
            values = (
                "" if "random" in name else f" from {before.get(name)!r} to {after.get(name)!r}"
            )
            ask(held=False, found=f"{what} changed the {name}{values}{more}")
