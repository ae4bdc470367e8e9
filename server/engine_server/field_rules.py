"""Field types of requests that pydantic has no name for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""An integer that fits the wire; what it may be is the engine's to say."""
Number = Annotated[float, Field(allow_inf_nan=False)]
"""A finite number."""


@dataclass(frozen=True)
class Refused:
    """Marks a field that isn't supported: only values that ask for nothing are let through.

    Attributes:
        why: what is told to whoever asks for it.
        harmless: values that mean the same as leaving the field out, besides null.
    """

    why: str
    harmless: tuple[Any, ...] = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Accept harmless values only."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        # 0 == False: a number doesn't stand for a switch
        if value is None or any(value == h and type(value) is type(h) for h in self.harmless):
            return value
        raise PydanticCustomError("unsupported", "{why}", {"why": self.why})
