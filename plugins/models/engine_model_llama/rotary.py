"""Rotary frequencies of a configuration, by transformers' own scaling functions."""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import ModelError

logger = logging.getLogger(__name__)


def rotary_frequencies(config: Any, head_size: int) -> tuple[torch.Tensor, float]:
    """Return inverse frequencies and the factor on cosines and sines.

    Two kinds of scaling depend on the length of the sequence at hand. `dynamic` changes nothing
    up to `max_position_embeddings`, beyond which nothing is served. `longrope` has one set of
    factors for sequences within the original context and one for longer ones; rows of a batch
    can't differ, so the configured context decides, once.

    Args:
        config: a transformers configuration.
        head_size: D.

    Returns:
        [D / 2] float32 in radians per position, and the factor.

    Raises:
        ModelError: the kind of scaling is unknown, differs from layer to layer, or only a part
            of the head is to be rotated.
    """
    parameters = _parameters(config)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    # Transformers ignores the field for this family, or fails on it: what it should mean for a
    # checkpoint that has it can't be known.
    if (part := parameters.get("partial_rotary_factor", 1.0)) not in (1.0, None):
        raise ModelError(
            f"config.json: partial_rotary_factor={part!r} isn't something that the llama "
            "implementation has (the whole head is rotated); try --model-impl transformers."
        )
    if kind == "default":
        return _default(float(parameters.get("rope_theta") or 10000.0), head_size), 1.0
    if kind not in ROPE_INIT_FUNCTIONS:
        known = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
        raise ModelError(
            f"config.json: rope_parameters.rope_type={kind!r} isn't known to the llama "
            f"implementation (known: {known}); try --model-impl transformers."
        )
    length = _longrope_length(config, parameters) if kind == "longrope" else None
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    return frequencies.float(), float(scale)


def _parameters(config: Any) -> dict[str, Any]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [key for key, value in parameters.items() if isinstance(value, dict)]
    if nested:
        raise ModelError(
            f"config.json: rope_parameters differ by layer type ({', '.join(nested)}), which the "
            "llama implementation doesn't support; try --model-impl transformers."
        )
    return dict(parameters)


def _default(theta: float, size: int) -> torch.Tensor:
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    return 1.0 / (theta**exponents)


def _longrope_length(config: Any, parameters: dict[str, Any]) -> int | None:
    """Return the sequence length that selects the set of factors."""
    original = parameters.get("original_max_position_embeddings")
    if original is None or config.max_position_embeddings <= original:
        return None
    logger.warning(
        "longrope: the factors for long contexts are used for every request, because "
        "max_position_embeddings (%d) is over the original context (%d); set "
        "--hf-overrides '{\"max_position_embeddings\": %d}' for the short ones",
        config.max_position_embeddings,
        original,
        original,
    )
    return int(config.max_position_embeddings)
