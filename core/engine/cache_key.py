"""Which settings are in a cache key: all of them, but for those that say why they aren't."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class OutOfKey:
    """Marks a setting or a plugin's option that needn't be in the key of a compiled artifact.

    Attributes:
        reason: why two values of it may share an artifact.

    Example:
        >>> class Options(BaseModel):
        ...     verbose: Annotated[bool, OutOfKey("only changes what is printed")] = False
    """

    reason: str


def settings_factors(settings: BaseModel, prefix: str = "") -> dict[str, str]:
    """Return every setting that isn't marked `OutOfKey`, as text, by name.

    Args:
        settings: a model; the models inside it are gone through as well.
        prefix: put before each name.
    """
    factors: dict[str, str] = {}
    fields = type(settings).model_fields
    for name, field in fields.items():
        if any(isinstance(mark, OutOfKey) for mark in field.metadata):
            continue
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            factors |= settings_factors(value, f"{prefix}{name}.")
        else:
            factors[f"{prefix}{name}"] = _text(value)
    # What a schema takes without knowing it.
    for name, value in (settings.model_extra or {}).items():
        factors[f"{prefix}{name}"] = _text(value)
    return factors


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)
