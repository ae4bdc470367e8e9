"""Every error the engine raises on purpose.

EngineError                     a sentence for the user; the CLI prints it and exits 2
├── ConfigError                 a setting is wrong: names the field, the value and the remedy
│   └── ResolutionError         an explicit request that can't be honoured here
├── PluginError
│   ├── UnknownPluginError      no installed plugin has that name
│   ├── DuplicatePluginError    two distributions claim one name
│   └── BrokenPluginError       the selected plugin can't be imported or doesn't fit the contract
├── ModelError                  the model folder, its config or its weights are unusable
│   └── CompileError            a compile mode can't make this model's callable; another may
├── RequestError                one request is invalid (HTTP 400); nothing else is disturbed
├── QueueFullError              the bounded queue is full (HTTP 503)
└── EngineDeadError             the engine process is gone (HTTP 503)
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error the engine raises on purpose; its text is written for users."""


class ConfigError(EngineError):
    """A setting is wrong. The message names the field, the value and the remedy."""


class ResolutionError(ConfigError):
    """An explicit setting can't be honoured on this machine or with the other settings."""


class PluginError(EngineError):
    """Something is wrong with a plugin that was asked for."""


class UnknownPluginError(PluginError):
    """No installed distribution offers a plugin of that kind and name."""


class DuplicatePluginError(PluginError):
    """Two distributions offer a plugin of the same kind and name."""


class BrokenPluginError(PluginError):
    """A selected plugin can't be imported, or what it registers doesn't fit the contract."""


class ModelError(EngineError):
    """The model folder, its configuration or its weights can't be used."""


class CompileError(ModelError):
    """A compile mode can't make a callable of this model here; another mode may.

    Where neither the mode nor the backend was asked for, the engine takes the level's next mode
    and says so in one line; what was asked for ends with this error.

    Attributes:
        reason: what stands in the way.
        remedy: what the user can do.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason, self.remedy = reason, remedy

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        """Cross from the engine process to the API process whole."""
        return type(self), (self.reason, self.remedy)


class RequestError(EngineError):
    """One request is invalid.

    Attributes:
        param: the offending parameter, as the client spelt it; None when it is the whole request.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFullError(EngineError):
    """The bounded request queue is full; the client should retry later."""


class EngineDeadError(EngineError):
    """The engine process ended; no request can be served any more."""
