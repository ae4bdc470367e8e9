"""Open, typed constants for plugin names.

`CompilationMode.NONE` is the string "none" with a type. The members aren't listed here:
whatever name a distribution registers is a member (`CompilationMode.MY_MODE`), so a third
party's mode reads like a built-in and the core names no mode. Reading an attribute checks the
installed plugins' metadata (nothing is imported), so a misspelling fails at once.
"""

from __future__ import annotations

import difflib
from typing import Any, ClassVar, Self


def normalize(name: str) -> str:
    """Return the canonical spelling of a plugin name: lower case, underscores.

    A prefix `distribution:` is kept as it is, because distributions have rules of their own.
    """
    dist, colon, plain = name.strip().rpartition(":")
    return f"{dist}{colon}{plain.lower().replace('-', '_')}"


class _OpenMembers(type):
    """Makes every installed plugin name of `KIND` an upper-case attribute of the class."""

    KIND: str

    def __getattr__(cls, attribute: str) -> Any:
        if attribute.startswith("_") or attribute != attribute.upper():
            raise AttributeError(attribute)
        names = cls._installed()
        if (name := normalize(attribute)) in names or name in cls._made_by_families():
            return cls(name)
        close = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {cls.__name__}.{close[0].upper()}?" if close else ""
        installed = ", ".join(n.upper() for n in names)
        raise AttributeError(f"{cls.__name__}.{attribute}: not installed.{hint} Has: {installed}.")

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *(name.upper() for name in cls._installed())]

    def __iter__(cls) -> Any:
        return iter([cls(name) for name in cls._installed()])

    def _installed(cls) -> list[str]:
        from engine.registry import Registry

        return Registry().names(cls.KIND)

    def _made_by_families(cls) -> list[str]:
        from engine.registry import Registry

        return Registry().family_names(cls.KIND)


class PluginName(str, metaclass=_OpenMembers):
    """A plugin's name on one axis; equal to the plain string, whatever case it was written in."""

    __slots__ = ()
    KIND: ClassVar[str] = ""

    def __new__(cls, value: str) -> Self:
        """Create the constant from any spelling (`My-Mode` and `my_mode` are one)."""
        return super().__new__(cls, normalize(value))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(
            cls, core_schema.str_schema(), serialization=core_schema.to_string_ser_schema()
        )


class CompilationMode(PluginName):
    """How the model's Python becomes a callable."""

    __slots__ = ()
    KIND = "compile_modes"


class CUDAGraphMode(PluginName):
    """Which batches are replayed from recorded graphs, and how."""

    __slots__ = ()
    KIND = "cudagraph_modes"


class BackendName(PluginName):
    """What turns an FX graph into a callable."""

    __slots__ = ()
    KIND = "backends"
