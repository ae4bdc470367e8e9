"""Compiles everything that a start would compile, into a directory that can be carried about."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.bundle import Bundle, write_bundle
from engine.cache_folder import CacheFolder
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.events import Event
from engine.registry import Registry
from engine.required_cache import SETTING, cannot_be_kept
from engine.runtime.engine_core import EngineCore
from engine.runtime.key_factors import common_factors, model_name
from engine.runtime.loading import resolve_settings
from engine.settings import Settings, as_settings


def compile_bundle(
    settings: EngineConfig | Settings,
    folder: Path,
    *,
    on_event: Callable[[Event], None] | None = None,
) -> Bundle:
    """Compile a model for these settings and write a bundle; nothing is served.

    Args:
        settings: what was asked for, as for an engine.
        folder: the bundle; must not exist, or be empty.
        on_event: receives every event.

    Raises:
        EngineError: a setting, a plugin or the model is unusable.
        ConfigError: the folder can't be written, or what these settings compile can't be kept.
    """
    asked, registry = as_settings(settings), Registry()
    for name in ("cache_dir", SETTING):
        if (setting := f"compilation_config.{name}") in asked.origins:
            raise ConfigError(
                f"{setting} ({asked.origins[setting]}): a bundle is compiled anew into its own "
                "folder; leave it out"
            )
    _refuse_what_is_not_kept(asked, registry)
    unfinished = _make_room(folder)
    try:
        bundle = _compile(asked, unfinished, registry, on_event)
        unfinished.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    except OSError as error:
        raise ConfigError(f"{folder}: can't be written: {error.strerror}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return replace(bundle, folder=folder)


def _refuse_what_is_not_kept(asked: Settings, registry: Registry) -> None:
    chosen = resolve_settings(asked, registry).config.compilation_config
    mode = registry.load("compile_modes", str(chosen.mode))
    refusal = cannot_be_kept(mode, registry.load("backends", str(chosen.backend)))
    if refusal is not None:
        raise ConfigError(
            f"there would be nothing in the bundle: {refusal.reason}; {refusal.remedy}"
        )
    if SETTING not in mode.SETTINGS:
        raise ConfigError(
            f"there would be nothing in the bundle: compile mode {mode.NAME} compiles nothing, "
            "and needs no compiler where it is served"
        )


def _make_room(folder: Path) -> Path:
    """Return a new folder beside the bundle's place, to be renamed when it is complete."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder}: exists already; remove it, or name another folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ConfigError(f"{folder}: can't be written: {error.strerror}") from error


def _compile(
    asked: Settings,
    folder: Path,
    registry: Registry,
    on_event: Callable[[Event], None] | None,
) -> Bundle:
    chosen = asked.config.compilation_config.model_copy(update={"cache_dir": folder})
    config = asked.config.model_copy(update={"compilation_config": chosen})
    core = EngineCore(
        replace(asked, config=config), registry=registry, on_event=on_event, compile_only=True
    )
    try:
        if core.ledger.unkept:
            unit, reason = next(iter(core.ledger.unkept.items()))
            raise ConfigError(
                f"{unit} can't be kept, so a bundle wouldn't spare the compiler: {reason}; choose "
                "another backend or compile mode"
            )
        written = len(CacheFolder(folder).entries())
        if not core.ledger.units:
            mode = core.resolution.config.compilation_config.mode
            raise ConfigError(
                "there would be nothing in the bundle: the start fell back to compile mode "
                f"{mode}; name the one that you want with --compilation-mode to see why"
            )
        if written != core.ledger.cache_misses:
            raise ConfigError(
                f"{folder.parent}: {core.ledger.cache_misses - written} artifacts couldn't be "
                "written there; free space, or name another folder"
            )
        effective = core.resolution.config
        return write_bundle(folder, model_name(effective), common_factors(effective))
    finally:
        core.close()
