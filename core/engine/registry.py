"""Finds plugins in the metadata of installed distributions and imports the selected ones.

Listing imports nothing. Loading imports exactly what was asked for, checks it against the
contract, and leaves no trace when that fails. An unselected broken plugin disturbs nobody.
"""

from __future__ import annotations

import difflib
import os
import pkgutil
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import pluggy

from engine.errors import (
    BrokenPluginError,
    DuplicatePluginError,
    PluginError,
    UnknownPluginError,
)
from engine.hookspecs import (
    API_VERSION,
    BASE_OF_KIND,
    HOOK_OF_KIND,
    OLDEST_API_VERSION,
    PROJECT,
    EngineSpec,
)
from engine.names import normalize


@dataclass(frozen=True)
class Claim:
    """One entry point: a distribution's claim to a name. Nothing is imported to make it."""

    kind: str
    name: str
    distribution: str
    version: str
    entry_point: metadata.EntryPoint

    def __str__(self) -> str:
        return f"{self.name!r} from {self.distribution} {self.version} ({self.entry_point.value})"


@dataclass(frozen=True)
class PluginStatus:
    """One row of `engine plugins`."""

    claim: Claim
    plugin: Any
    error: str
    traceback: str = ""

    @property
    def state(self) -> str:
        """`ok` or `broken`."""
        return "broken" if self.error else "ok"


def _blocked() -> frozenset[str]:
    names = os.environ.get("ENGINE_BLOCK_PLUGINS", "").split(",")
    return frozenset(normalize(name) for name in names if name.strip())


class Registry:
    """The plugins of the installed distributions.

    Args:
        distributions: where to look; the running environment when omitted.
        blocked: names (`name`, `kind/name` or `distribution:name`) to leave out; by default the
            comma-separated ENGINE_BLOCK_PLUGINS.
    """

    def __init__(
        self,
        distributions: Iterable[metadata.Distribution] | None = None,
        blocked: Iterable[str] | None = None,
    ) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(EngineSpec)
        self._blocked = _blocked() if blocked is None else frozenset(map(normalize, blocked))
        self._claims: dict[tuple[str, str], list[Claim]] = {}
        self._loaded: dict[Claim, Any] = {}
        self._discover(metadata.distributions() if distributions is None else distributions)

    def _discover(self, distributions: Iterable[metadata.Distribution]) -> None:
        seen: set[str] = set()
        for dist in distributions:
            # A distribution that is on sys.path twice (an editable install beside its build
            # folder) is one distribution: the first one found is the one that imports.
            if dist.name is None or (key := dist.name.lower()) in seen:
                continue
            seen.add(key)
            for entry_point in dist.entry_points:
                prefix, _, kind = entry_point.group.partition(".")
                if prefix == PROJECT and kind in HOOK_OF_KIND:
                    name = normalize(entry_point.name)
                    claim = Claim(kind, name, dist.name, dist.version, entry_point)
                    if not self._is_blocked(claim):
                        self._claims.setdefault((kind, name), []).append(claim)

    def _is_blocked(self, claim: Claim) -> bool:
        spellings = {
            claim.name,
            f"{claim.kind}/{claim.name}",
            normalize(f"{claim.distribution}:{claim.name}"),
        }
        return bool(spellings & self._blocked)

    def kinds(self) -> list[str]:
        """Return every kind of plugin that the contract knows."""
        return list(HOOK_OF_KIND)

    def names(self, kind: str) -> list[str]:
        """Return the installed names of one kind, sorted, without importing anything."""
        return sorted(name for k, name in self._claims if k == kind)

    def claims(self, kind: str | None = None) -> list[Claim]:
        """Return every claim (of one kind), sorted by kind, name and distribution."""
        rows = [c for claims in self._claims.values() for c in claims if kind in (None, c.kind)]
        return sorted(rows, key=lambda c: (c.kind, c.name, c.distribution))

    def find(self, kind: str, name: str) -> Claim:
        """Return the claim that a name selects, resolving case, hyphens and aliases.

        Args:
            kind: the kind of plugin (`compile_modes`, …).
            name: `name` or `distribution:name`, in any case, with hyphens or underscores.

        Raises:
            UnknownPluginError: nothing installed has that name.
            DuplicatePluginError: two distributions have it; select one as `distribution:name`.
        """
        dist, _, plain = normalize(name).rpartition(":")
        claims = self._claims.get((kind, plain)) or self._claims_by_alias(kind, plain)
        if dist:
            claims = [c for c in claims if c.distribution.lower() == dist.lower()]
        if not claims:
            raise UnknownPluginError(self._unknown(kind, name))
        if len(claims) > 1:
            choices = " or ".join(f"{c.distribution}:{c.name}" for c in claims)
            raise DuplicatePluginError(
                f"{_label(kind)} {plain!r} is claimed by two distributions: "
                f"{' and '.join(sorted(map(str, claims)))}. Select one as {choices}, "
                "uninstall one, or block one with ENGINE_BLOCK_PLUGINS=distribution:name."
            )
        return claims[0]

    def _claims_by_alias(self, kind: str, alias: str) -> list[Claim]:
        """Look an unknown name up among declared aliases; this has to import the kind."""
        found = []
        for claim in self.claims(kind):
            try:
                plugin = self.load_claim(claim)
            except PluginError:
                continue
            if alias in map(normalize, getattr(plugin, "ALIASES", ())):
                found.append(claim)
        return found

    def _unknown(self, kind: str, name: str) -> str:
        installed = self.names(kind)
        close = difflib.get_close_matches(normalize(name), installed, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        listed = ", ".join(installed) or "none"
        return f"unknown {_label(kind)} {name!r}.{hint} Installed: {listed}."

    def load(self, kind: str, name: str) -> Any:
        """Import the plugin that a name selects and return what it registers.

        Raises:
            UnknownPluginError: nothing installed has that name.
            DuplicatePluginError: two distributions have it.
            BrokenPluginError: it can't be imported or doesn't fit the contract.
        """
        return self.load_claim(self.find(kind, name))

    def load_claim(self, claim: Claim) -> Any:
        """Import one claimed plugin, check it, and return what it registers."""
        if claim in self._loaded:
            return self._loaded[claim]
        key = f"{claim.kind}:{claim.distribution}:{claim.name}"
        try:
            module = claim.entry_point.load()
            _check_api_version(module)
            self._manager.register(module, name=key)
            self._manager.check_pending()
            plugin = self._registered(claim, module)
        except Exception as error:
            if self._manager.has_plugin(key):
                self._manager.unregister(name=key)
            if isinstance(error, PluginError):
                raise
            raise BrokenPluginError(
                f"cannot load {_label(claim.kind)} {claim}: {type(error).__name__}: {error}"
            ) from error
        self._loaded[claim] = plugin
        return plugin

    def _registered(self, claim: Claim, module: Any) -> Any:
        hook = HOOK_OF_KIND[claim.kind]
        caller = getattr(self._manager.hook, hook)
        impls = [impl for impl in caller.get_hookimpls() if impl.plugin is module]
        if not impls:
            raise BrokenPluginError(
                f"{_label(claim.kind)} {claim} implements no hook {hook}; "
                f"a plugin of the group {PROJECT}.{claim.kind} must (decorated with @hookimpl)."
            )
        plugin = impls[0].function()
        if (path := BASE_OF_KIND.get(claim.kind)) is not None:
            _check_class(claim, plugin, pkgutil.resolve_name(path))
        return plugin

    def status(self, kind: str | None = None) -> list[PluginStatus]:
        """Import every plugin and say of each whether it can be used, and why not."""
        rows = []
        for claim in self.claims(kind):
            try:
                rows.append(PluginStatus(claim, self.load_claim(claim), ""))
            except PluginError as error:
                rows.append(PluginStatus(claim, None, str(error), traceback.format_exc()))
        return rows


def _label(kind: str) -> str:
    singular = kind[:-2] if kind.endswith("sses") else kind.removesuffix("s")
    singular = kind if kind == "weights" else singular
    return {"compile_mode": "compilation mode", "cudagraph_mode": "CUDA-graph mode"}.get(
        singular, singular.replace("_", " ")
    )


def _check_api_version(module: Any) -> None:
    wanted = getattr(module, "ENGINE_API_VERSION", None)
    if wanted is None:
        raise BrokenPluginError(
            f"{module.__name__} states no ENGINE_API_VERSION; "
            f"add `ENGINE_API_VERSION = {API_VERSION}` to it."
        )
    if not isinstance(wanted, int) or not OLDEST_API_VERSION <= wanted <= API_VERSION:
        upgrade = "engine" if isinstance(wanted, int) and wanted > API_VERSION else "the plugin"
        raise BrokenPluginError(
            f"{module.__name__} was written for plugin API {wanted!r}, this engine speaks "
            f"{OLDEST_API_VERSION} to {API_VERSION}; upgrade {upgrade}."
        )


def _check_class(claim: Claim, plugin: Any, base: type) -> None:
    if not (isinstance(plugin, type) and issubclass(plugin, base)):
        raise BrokenPluginError(
            f"{_label(claim.kind)} {claim} registered {plugin!r}; "
            f"its hook must return a subclass of {base.__module__}.{base.__name__}."
        )
    missing = [a for a in ("NAME", "SUMMARY") if not getattr(plugin, a, None)]
    if missing:
        raise BrokenPluginError(
            f"{_label(claim.kind)} {claim} declares no {' and no '.join(missing)}."
        )
    if normalize(plugin.NAME) != claim.name:  # type: ignore[attr-defined]
        raise BrokenPluginError(
            f"{_label(claim.kind)} {claim} calls itself {plugin.NAME!r}; "  # type: ignore[attr-defined]
            "NAME and the entry point must agree."
        )
    abstract = sorted(getattr(plugin, "__abstractmethods__", ()))
    if abstract:
        raise BrokenPluginError(
            f"{_label(claim.kind)} {claim} leaves {', '.join(abstract)} unimplemented."
        )
