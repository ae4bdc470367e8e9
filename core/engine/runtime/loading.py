"""From the name of a model to a module with weights, in steps that can be taken one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelError, PluginError
from engine.events import EventBus
from engine.facts import ModelFacts
from engine.model_folder import read_tokenizer
from engine.models import CausalLM, ModelPlugin
from engine.plugin import Refusal
from engine.registry import Registry
from engine.resolution import Record, Resolution, resolve
from engine.runtime.devices import detect_device
from engine.runtime.model_source import locate_model, served_name
from engine.settings import Settings
from engine.weights import WeightsPlugin


@dataclass(frozen=True)
class Checkpoint:
    """A model that was found and whose configuration was read; no weights yet.

    Attributes:
        path: the folder or file.
        loader: reads it.
        config: the transformers configuration, with the user's overrides applied.
        facts: what resolution needs to know of it.
        name: what it is called when served.
    """

    path: Path
    loader: WeightsPlugin
    config: Any
    facts: ModelFacts
    name: str


def open_checkpoint(settings: Settings, registry: Registry) -> Checkpoint:
    """Find the model and read its configuration.

    Raises:
        ModelError: there is no such model, or its files are unusable.
        PluginError: the named loader is unknown or broken.
        ConfigError: an override names a field that the configuration doesn't have.
    """
    config = settings.config
    path = locate_model(config.model)
    loader = _loader(config.load_format, path, registry)
    hf_config = loader.config(path)
    for key, value in config.hf_overrides.items():
        if not hasattr(hf_config, key):
            raise ConfigError(
                f"hf_overrides.{key}={value!r}: {type(hf_config).__name__} has no such field"
            )
        setattr(hf_config, key, value)
    return Checkpoint(path, loader, hf_config, model_facts(hf_config), served_name(path))


def _loader(load_format: str, path: Path, registry: Registry) -> WeightsPlugin:
    if load_format != "auto":
        plugin: type[WeightsPlugin] = registry.load("weights", load_format)
        return plugin()
    usable, broken = _usable("weights", registry)
    for plugin in usable:
        if plugin.handles(path):
            return plugin()
    raise ModelError(
        f"{path}: no weight loader knows its format (installed: "
        f"{', '.join(registry.names('weights'))}); pass a folder with safetensors files or a "
        f".gguf file, or name one with --load-format{broken}"
    )


def _usable(kind: str, registry: Registry) -> tuple[list[Any], str]:
    """Return the plugins of a kind that can be asked what they handle, and a word on the others.

    One that is broken and wasn't asked for must not keep a model from being served.
    """
    plugins, broken = [], []
    for claim in registry.claims(kind):
        try:
            plugins.append(registry.load_claim(claim))
        except PluginError as error:
            broken.append(str(error))
    return plugins, "".join(f" ({text})" for text in broken)


def open_tokenizer(config: EngineConfig, checkpoint: Checkpoint) -> Any:
    """Return the tokenizer that the settings name, or the model's own; None if there is none.

    Raises:
        ModelError: its files are unusable.
    """
    if config.skip_tokenizer:
        return None
    if config.tokenizer is None:
        return checkpoint.loader.tokenizer(checkpoint.path)
    folder = Path(config.tokenizer).expanduser()
    if not folder.is_dir():
        raise ModelError(
            f"tokenizer={config.tokenizer!r}: no such folder; nothing is downloaded, so pass a "
            "folder that holds tokenizer.json"
        )
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        raise ModelError(
            f"tokenizer={config.tokenizer!r}: the folder holds no tokenizer; pass one that holds "
            "tokenizer.json"
        )
    return tokenizer


def model_facts(config: Any) -> ModelFacts:
    """Read what resolution needs from a transformers configuration.

    Raises:
        ModelError: the configuration lacks what every decoder has.
    """
    text = config.get_text_config(decoder=True)
    architectures = getattr(config, "architectures", None) or [type(config).__name__]
    length = getattr(text, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise ModelError(
            f"{architectures[0]}: its config names no max_position_embeddings; "
            "pass --hf-overrides '{\"max_position_embeddings\": N}'"
        )
    dtype = getattr(text, "dtype", None) or getattr(config, "dtype", None) or torch.float32
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    return ModelFacts(
        architecture=architectures[0],
        dtype=str(dtype).removeprefix("torch."),
        max_model_len=length,
        num_layers=int(text.num_hidden_layers),
        hidden_size=hidden,
        vocab_size=int(text.vocab_size),
        head_size=int(getattr(text, "head_dim", None) or hidden // heads),
    )


def resolve_settings(settings: Settings, registry: Registry | None = None) -> Resolution:
    """Decide every setting without loading a weight (`engine explain`).

    Raises:
        EngineError: a setting, a plugin or the model's configuration is unusable.
    """
    registry = registry or Registry()
    return resolve_for(settings, open_checkpoint(settings, registry), registry)


def resolve_for(
    settings: Settings,
    checkpoint: Checkpoint,
    registry: Registry,
    *,
    excluded: Mapping[tuple[str, str], Refusal] | None = None,
) -> Resolution:
    """Decide every setting for an opened model; `excluded` as in `engine.resolution.resolve`."""
    config = settings.config
    device = detect_device(config.device, config.graph_device, config.threads)
    resolution = resolve(settings, device, checkpoint.facts, registry, excluded)
    implementation = choose_model(config.model_impl, checkpoint.config, registry)
    asked = config.model_impl != "auto"
    record = Record(
        "model_impl",
        config.model_impl if asked else "",
        implementation.NAME,
        settings.origins.get("model_impl", "model"),
        "asked for" if asked else implementation.SUMMARY,
    )
    records = [record]
    if config.load_format == "auto":
        records.append(
            Record("load_format", "", checkpoint.loader.NAME, "model", checkpoint.loader.SUMMARY)
        )
    return resolution.with_records(
        [r for r in records if all(r.setting != old.setting for old in resolution.records)],
        model_impl=implementation.NAME,
        load_format=checkpoint.loader.NAME,
        model=str(checkpoint.path),
    )


def choose_model(name: str, config: Any, registry: Registry) -> type[ModelPlugin]:
    """Return the named model implementation, or the best that handles the configuration.

    Raises:
        ModelError: the named one doesn't handle it, or none does.
    """
    if name != "auto":
        plugin: type[ModelPlugin] = registry.load("models", name)
        if not plugin.handles(config):
            raise ModelError(
                f"model_impl={name!r}: it doesn't handle {type(config).__name__}; "
                "leave --model-impl out to take the implementation that does"
            )
        return plugin
    plugins, broken = _usable("models", registry)
    fitting: list[type[ModelPlugin]] = [p for p in plugins if p.handles(config)]
    if not fitting:
        raise ModelError(
            f"no installed model implementation handles {type(config).__name__} "
            f"(installed: {', '.join(registry.names('models'))}){broken}"
        )
    return max(fitting, key=lambda p: p.PRIORITY)


def build_model(checkpoint: Checkpoint, resolution: Resolution, registry: Registry) -> CausalLM:
    """Build the module on the device; its weights aren't read yet.

    Raises:
        ModelError: the architecture is unusable.
    """
    config = resolution.config
    plugin: type[ModelPlugin] = registry.load("models", config.model_impl)
    dtype: torch.dtype = getattr(torch, config.dtype)
    model = plugin().build(checkpoint.config, dtype=dtype, device=torch.device(config.device))
    return model.eval().requires_grad_(requires_grad=False)


def load_weights(
    model: CausalLM, checkpoint: Checkpoint, config: EngineConfig, events: EventBus
) -> None:
    """Fill a built module with its weights.

    Raises:
        ModelError: the weights are unusable.
    """
    with torch.inference_mode():
        checkpoint.loader.load(model, checkpoint.path, checkpoint.config, events, config.seed)
