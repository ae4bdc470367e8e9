"""Plugins in single files: an idea is tried without packaging it.

A file is a module like any plugin's: it states ENGINE_API_VERSION and implements hooks. Naming a
file is selecting it, so it is imported at once; its full path keeps two files of one name apart.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from engine.errors import BrokenPluginError, ConfigError
from engine.hookspecs import HOOK_OF_KIND

VARIABLE = "ENGINE_PLUGIN_FILES"
"""Paths of plugin files, separated as in PATH; `--plugin` adds to it."""


def files_in_force() -> tuple[Path, ...]:
    """Return the files that the environment names, each once, in order."""
    named = os.environ.get(VARIABLE, "").split(os.pathsep)
    return tuple(dict.fromkeys(Path(name).expanduser().resolve() for name in named if name))


def import_file(path: Path) -> ModuleType:
    """Import a plugin file; once, however often it is asked for.

    Raises:
        ConfigError: there is no such file, or it is no Python.
        BrokenPluginError: it can't be imported.
    """
    if path.suffix != ".py" or not path.is_file():
        problem = "no such file" if not path.exists() else "a plugin file ends in .py"
        raise ConfigError(f"plugin file {path}: {problem}; name a Python file with a plugin's hook")
    name = f"engine_plugin_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if (known := sys.modules.get(name)) is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"plugin file {path}: Python can't import it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # A stranger's file may fail in any way, and may even want to end the process.
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        said = next(iter(str(error).splitlines()), "")
        raise BrokenPluginError(
            f"cannot load the plugin file {path}: {type(error).__name__}: {said}; repair it or "
            "leave it out"
        ) from error
    return module


def plugins_of(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and module of each plugin in a file.

    Raises:
        ConfigError: there is no such file, or it has no hook.
        BrokenPluginError: it, or a hook of it, fails.
    """
    module = import_file(path)
    found = [(kind, hook) for kind, hook in HOOK_OF_KIND.items() if hasattr(module, hook)]
    if not found:
        raise ConfigError(
            f"plugin file {path}: it implements no hook; define one of "
            f"{', '.join(HOOK_OF_KIND.values())}, decorated with @hookimpl"
        )
    for kind, hook in found:
        try:
            plugin = getattr(module, hook)()
        # Likewise.
        except (Exception, SystemExit) as error:
            raise BrokenPluginError(
                f"cannot load the plugin file {path}: {hook} raised {type(error).__name__}: "
                f"{error}; repair it or leave it out"
            ) from error
        yield kind, str(getattr(plugin, "NAME", None) or path.stem), module.__name__
