"""Whether options fit what a plugin declares; where not, sentences that name each one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from engine.errors import ResolutionError


def check_options(field: str, plugin: str, schema: type[BaseModel], given: dict[str, Any]) -> None:
    """Check options against a plugin's schema.

    Args:
        field: the setting that holds them (`mode_options`, …).
        plugin: its name.
        schema: its `OPTIONS`.
        given: the options.

    Raises:
        ResolutionError: one is unknown or ill-typed; names it, and what there is.
    """
    try:
        schema(**given)
    except ValidationError as error:
        problems = _problems(field, error)
        if schema.model_config.get("extra") != "allow":
            problems += f"; {plugin} has {_describe(schema.model_fields)}"
        raise ResolutionError(problems) from None


def _problems(field: str, error: ValidationError) -> str:
    problems = []
    for problem in error.errors(include_url=False):
        where = ".".join([field, *map(str, problem["loc"])])
        unknown = problem["type"] == "extra_forbidden"
        message = "no such option" if unknown else str(problem["msg"])
        # What a schema says of all its options together names the option itself.
        value = f"={problem['input']!r}" if problem["loc"] else ""
        problems.append(f"{where}{value}: {message.removeprefix('Value error, ')}")
    return "; ".join(problems)


def _describe(fields: Any) -> str:
    return "the options " + ", ".join(sorted(fields)) if fields else "no options"
