"""Checkpoints whose layout transformers changes while loading (the experts of many models)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from engine.errors import ModelError


def converted(
    kind: type[PreTrainedModel],
    config: PretrainedConfig,
    known: Mapping[str, torch.Tensor],
    rest: Mapping[str, torch.Tensor],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Let transformers load a whole checkpoint, and yield what it made of the unknown tensors.

    The rules are transformers' own and differ from model to model; it applies them to whole
    models only. The model is therefore in memory twice for a moment.

    Args:
        kind: the class of the model.
        config: its configuration.
        known: tensors whose names the model has; they are passed on, not yielded.
        rest: tensors whose names it hasn't.

    Yields:
        names of the model and tensors; the names of the checkpoint for what fits nowhere.

    Raises:
        ModelError: a tensor has the wrong shape.
    """
    loader: Any = kind
    try:
        model, report = loader.from_pretrained(
            None,
            config=config,
            state_dict={**known, **rest},
            dtype=next(iter(rest.values())).dtype,
            output_loading_info=True,
        )
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"the checkpoint doesn't fit config.json: transformers can't load it ({error})."
        ) from error
    missing = set(report["missing_keys"])
    for name, tensor in model.state_dict().items():
        if name not in known and name not in missing:
            yield name, tensor
    yield from ((name, rest[name]) for name in report["unexpected_keys"] if name in rest)
