"""The other side of `fresh`: calls one function and writes down what came of it."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from engine.errors import EngineError, ResolutionError


def reply_of(target: str, request: Any) -> dict[str, Any]:
    """Call a function and put its result, or its error, in words."""
    try:
        return {"outcome": "done", "value": resolve_name(target)(request)}
    except ResolutionError as error:
        return {"outcome": "refused", "reason": str(error)}
    except EngineError as error:
        return {"outcome": "failed", "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is one row of a table
        traceback.print_exc()
        return {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    answer = reply_of(sys.argv[1], json.load(sys.stdin))
    Path(sys.argv[2]).write_text(json.dumps(answer))
