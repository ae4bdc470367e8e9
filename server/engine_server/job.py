"""One request for text, checked and ready for the engine."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.sampling_params import SamplingParams
from engine_server.metrics import Metrics
from engine_server.request_fields import SamplingFields
from engine_server.results import Results
from engine_server.state import Serving
from engine_server.tools import ToolUse


@dataclass(frozen=True)
class Job:
    """What both endpoints need to answer.

    Attributes:
        kind: OpenAI's name of the answer, `text_completion`.
        id: of the answer.
        model: the model, as the client calls it.
        serving: what is served.
        body: what was asked.
        prompts: text or token ids.
        params: sampling, the same for all prompts.
        spelling: the client's names of parameters that the engine calls differently.
        timeout: seconds until the last result must be there; None for no limit.
        tools: how tools are used; None when they aren't.
        created: seconds since the epoch.
    """

    kind: str
    id: str
    model: str
    serving: Serving
    body: SamplingFields
    prompts: list[str | list[int]]
    params: SamplingParams
    spelling: Mapping[str, str]
    timeout: float | None = None
    tools: ToolUse | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    async def start(self, metrics: Metrics) -> Results:
        """Hand the prompts to the engine; whoever gets the results closes them.

        Raises:
            ApiError: the engine takes none of them.
        """
        return await Results.start(
            self.serving.engine, self.prompts, self.params, metrics, self.spelling, self.timeout
        )


def new_id(prefix: str) -> str:
    """Return an id that no other answer has."""
    return f"{prefix}-{uuid.uuid4().hex}"
