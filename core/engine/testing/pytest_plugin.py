"""The pytest plugin of the conformance kit: skips what a plugin doesn't claim, expects failures.

pytest loads it at each start, so it imports nothing of the kit.
"""

from __future__ import annotations

from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each check of a conformance class: skipped, or expected to fail (strictly)."""
    for item in items:
        suite: Any = getattr(item, "cls", None)
        if not hasattr(suite, "why_skipped"):
            continue
        name = getattr(item, "originalname", item.name)
        suite.check_expectations()
        if reason := suite.why_skipped(name):
            item.add_marker(pytest.mark.skip(reason=reason))
        elif expected := suite.expectation(name):
            item.add_marker(pytest.mark.xfail(reason=expected, strict=True))
