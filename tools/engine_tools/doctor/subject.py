"""What the checks look at: the settings and the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from engine import Registry, Settings, locate_model
from engine_tools.doctor.machine import Accelerators, TorchBuild, find_accelerators, find_torch


@dataclass(frozen=True)
class Address:
    """Where the server would listen: a host and port, or a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None


@dataclass
class Subject:
    """What is examined.

    Attributes:
        settings: what an engine would be started with.
        address: where its server would listen.
        accelerators: the GPUs.
        torch: the installed torch.
    """

    settings: Settings
    address: Address = Address()
    accelerators: Accelerators = field(default_factory=find_accelerators)
    torch: TorchBuild = field(default_factory=find_torch)

    @cached_property
    def registry(self) -> Registry:
        """The installed plugins.

        Raises:
            EngineError: a plugin file is missing or broken.
        """
        return Registry()

    @cached_property
    def model(self) -> Path:
        """The model's folder or file.

        Raises:
            ModelError: there is no such model.
        """
        return locate_model(self.settings.config.model)

    @property
    def device(self) -> str:
        """The device type that an engine would take: `cuda` needs a GPU and a build for it."""
        asked = self.settings.config.device
        if asked != "auto":
            return asked
        return "cuda" if self.accelerators.gpus and self.torch.cuda else "cpu"

    @property
    def may_compile(self) -> bool:
        """Whether something may be compiled by inductor, whose tools the machine must have."""
        chosen = self.settings.config.compilation_config
        return chosen.mode != "none" and chosen.backend in (None, "inductor")

    @property
    def must_compile(self) -> bool:
        """Whether that was asked for; a mode that is only the default gives way to another."""
        config = self.settings.config
        chosen = config.compilation_config
        asked = chosen.mode or chosen.backend
        return self.may_compile and asked is not None and config.on_downgrade == "error"
