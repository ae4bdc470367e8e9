"""What the core adds to the key of every artifact: settings and code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.cache_key import settings_factors
from engine.config import EngineConfig
from engine.environment import environment_factors
from engine.runtime.model_source import served_name
from engine.source_code import model_code, package_code

if TYPE_CHECKING:
    from engine.models import CausalLM
    from engine.runtime.assembly import Strategies

_ONLY_RUN = ("runtime", "testing", "recording")
"""Folders of the core that run compiled code and have no say in what it is."""


def core_factors(config: EngineConfig) -> dict[str, str]:
    """Return the effective settings that aren't marked `OutOfKey`, and a hash of the core's code.

    Known before a model is loaded.
    """
    return {
        **settings_factors(config, "setting."),
        "code of engine": package_code("engine", without=_ONLY_RUN),
    }


def common_factors(config: EngineConfig) -> dict[str, str]:
    """Return what is in every key whatever the model: the core's factors, and the environment."""
    return {**environment_factors(torch.device(config.device)), **core_factors(config)}


def key_factors(config: EngineConfig, strategies: Strategies, model: CausalLM) -> dict[str, str]:
    """Return the core's factors, and hashes of the code of the model and of the plugins."""
    compiler, backend = strategies.compiler, strategies.backend
    code = {
        "code of strategy": package_code(type(compiler).__module__),
        "code of backend": package_code(type(backend).__module__),
        "code of passes": " ".join(package_code(type(one).__module__) for one in strategies.passes),
        "code of attention": package_code(type(strategies.attention).__module__),
        "code of model": model_code(model),
    }
    return {**core_factors(config), **code}


def model_name(config: EngineConfig) -> str:
    """Return what the artifacts of a model are labelled with."""
    return served_name(Path(config.model or ""))
