"""Makes paged histories that run through sdpa."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.testing.attention import History
from engine_attention_sdpa.attention import SdpaAttention


@pytest.fixture
def history() -> Callable[..., History]:
    """Make a `History` with an sdpa plugin of its own; see there for the other arguments."""
    return lambda *args, **options: History(SdpaAttention(), *args, **options)
