"""Which operators of a model nobody vouches for in a recorded graph."""

from __future__ import annotations

from typing import Any

from engine.models import CausalLM
from engine.ops import OperatorWatch
from engine.strategies import ModelInputs


def unknown_operators(model: CausalLM, inputs: ModelInputs) -> tuple[str, ...]:
    """Return their names, sorted; call it in a forward context.

    Seen by running the plain model once: compiled code can't be watched in every mode.
    """
    names: set[str] = set()

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names.add(func.name().partition(".")[0])
        return func(*args, **kwargs)

    with OperatorWatch(note):
        model(inputs.input_ids, inputs.positions)
    return tuple(sorted(names))
