"""What the server knows of its engine: starting, serving, ending or dead."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from importlib import metadata
from typing import cast

from engine import Registry
from engine.events import Event, PhaseAdvanced, PhaseFinished, PhaseStarted
from engine.tool_parsers import ToolParserPlugin
from engine_server.config import ServerConfig
from engine_server.engine_api import Engine
from engine_server.errors import ApiError, unavailable
from engine_server.metrics import Metrics
from engine_server.token_text import TokenText
from engine_server.tools import choose_parser

DISTRIBUTION = "modular-engine"


@dataclass(frozen=True)
class Phase:
    """Where the start-up is.

    Attributes:
        name: of the phase.
        done: steps of it that are finished.
        total: steps it has, if known.
    """

    name: str
    done: int = 0
    total: int | None = None


@dataclass(frozen=True)
class Serving:
    """An engine that has started, under the names that clients use.

    Attributes:
        engine: the engine.
        names: what the model may be called; the first is the default.
        tokens: the text of token ids.
        created: seconds since the epoch.
        fingerprint: changes with everything that may change results.
        tool_parser: reads calls of tools; None when the model's format isn't known.
    """

    engine: Engine
    names: tuple[str, ...]
    tokens: TokenText
    created: int
    fingerprint: str
    tool_parser: ToolParserPlugin | None = None

    def name(self, asked: str | None) -> str:
        """Return the model's name as the client calls it.

        Raises:
            ApiError: no such model is served.
        """
        if asked is None:
            return self.names[0]
        if asked not in self.names:
            raise ApiError(
                404,
                f"The model {asked!r} does not exist; this server has {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )
        return asked


class ServerState:
    """Shared by all routes; changed by the lifecycle only.

    Args:
        config: the server's settings.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.version = metadata.version(DISTRIBUTION)
        self.metrics = Metrics(config.metrics_prefix)
        self.phase = Phase("start")
        self.phase_seconds: dict[str, float] = {}
        self.stopping = False
        self._serving: Serving | None = None
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def observe(self, event: Event) -> None:
        """Follow the start-up; may be called by any thread."""
        match event:
            case PhaseStarted(phase, total):
                self.phase = Phase(phase, 0, total)
            case PhaseAdvanced(phase, done, total):
                self.phase = Phase(phase, done, total)
            case PhaseFinished(phase, seconds):
                self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds

    def ready(self, engine: Engine) -> None:
        """Begin to serve."""
        records = engine.resolution.records
        settings = ";".join(f"{r.setting}={r.effective}" for r in records)
        digest = hashlib.sha256(f"{self.version};{settings}".encode()).hexdigest()[:10]
        self.metrics.settings = {record.setting: record.effective for record in records}
        if self.config.chat_template is not None:
            engine.tokenizer.chat_template = self.config.chat_template.read_text()
        cache = engine.resolution.config
        self.metrics.cache_config = {
            "block_size": str(cache.block_size),
            "enable_prefix_caching": str(cache.enable_prefix_caching),
        }
        self._serving = Serving(
            engine=engine,
            names=self.config.served_model_name or (engine.model_name,),
            tokens=TokenText(engine.tokenizer),
            created=int(time.time()),
            fingerprint=f"engine-{self.version}-{digest}",
            tool_parser=choose_parser(self.config.tool_call_parser, engine.tokenizer, Registry()),
        )

    @property
    def started(self) -> Serving | None:
        """What is served, whether or not it still can; None while starting."""
        return self._serving

    @property
    def alive(self) -> bool:
        """Whether the engine runs or is about to."""
        return self._serving is None or self._serving.engine.alive

    def problem(self) -> ApiError | None:
        """Return why no request is taken now; None when requests are taken."""
        if self.stopping:
            return unavailable("the server is shutting down", "shutting_down")
        if self._serving is None:
            phase = self.phase
            steps = f" ({phase.done} of {phase.total})" if phase.total else ""
            return unavailable(f"the engine is starting: {phase.name}{steps}", "starting")
        if not self._serving.engine.alive:
            return unavailable("the engine process has ended", "engine_dead")
        return None

    def require(self) -> Serving:
        """Return what is served.

        Raises:
            ApiError: no request is taken now.
        """
        if (problem := self.problem()) is not None:
            raise problem
        return cast("Serving", self._serving)

    @property
    def running(self) -> int:
        """HTTP requests that haven't been answered to the end."""
        return self._running

    def enter(self) -> None:
        """Count a request in."""
        self._running += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a request out."""
        self._running -= 1
        if not self._running:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until every request has been answered."""
        await self._idle.wait()
