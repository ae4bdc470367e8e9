"""The options of the inductor backend: whatever inductor itself can be told."""

from __future__ import annotations

import difflib
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator


class InductorOptions(BaseModel):
    """Any setting of `torch._inductor.config`, by name (`max_autotune=true`)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def patches(self) -> dict[str, Any]:
        """The settings by dotted name."""
        return dict(_flatten(self.model_extra or {}))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model_extra:
            return self
        from torch._inductor import config

        known: dict[str, Any] = config.get_config_copy()
        for name, value in self.patches.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"inductor has no setting {name!r}{hint}")
            default = known[name]
            if default is not None and not isinstance(value, type(default)):
                raise ValueError(
                    f"{name}={value!r}: inductor wants a {type(default).__name__} "
                    f"(its default is {default!r})"
                )
        return self


def _flatten(options: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Name nested options by dots, as inductor does (`triton.cudagraphs`)."""
    flat = []
    for name, value in options.items():
        if isinstance(value, dict):
            flat += _flatten(value, f"{prefix}{name}.")
        else:
            flat.append((prefix + name, value))
    return flat
