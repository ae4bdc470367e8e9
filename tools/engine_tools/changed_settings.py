"""Settings with a few fields asked for by a tool."""

from __future__ import annotations

from typing import Any

from engine import Settings


def with_compilation(settings: Settings, by: str, **values: Any) -> Settings:
    """Return settings with fields of the compilation changed, which then count as asked for.

    Args:
        settings: left as they are.
        by: who asks, for the record of each setting.
        **values: fields of `CompilationConfig`.
    """
    compilation = settings.config.compilation_config.model_copy(update=values)
    config = settings.config.model_copy(update={"compilation_config": compilation})
    said = {f"compilation_config.{name}": by for name in values}
    return Settings(config, {**settings.origins, **said})
