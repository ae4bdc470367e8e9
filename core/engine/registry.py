"""Finds plugins in the metadata of installed distributions and imports the selected ones.

Listing imports nothing. Loading imports exactly what was asked for, checks it against the
contract, and leaves no trace when that fails. An unselected broken plugin disturbs nobody.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pluggy

from engine.errors import (
    BrokenPluginError,
    DuplicatePluginError,
    PluginError,
    UnknownPluginError,
)
from engine.hookspecs import HOOK_OF_KIND, LABEL_OF_KIND, PROJECT, EngineSpec
from engine.names import normalize
from engine.plugin_checks import check_hooks, check_module, check_registered
from engine.plugin_files import files_in_force, plugins_of

logger = logging.getLogger(__name__)


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


class Registry:
    """The plugins of the installed distributions.

    Args:
        distributions: where to look; the running environment when omitted.
        blocked: names (`name`, `kind/name` or `distribution:name`) to leave out; by default the
            comma-separated ENGINE_BLOCK_PLUGINS.
        files: plugin files to add; by default those that ENGINE_PLUGIN_FILES names.

    Raises:
        ConfigError: a plugin file doesn't exist or has no plugin in it.
        BrokenPluginError: a plugin file can't be imported.
    """

    def __init__(
        self,
        distributions: Iterable[metadata.Distribution] | None = None,
        blocked: Iterable[str] | None = None,
        files: Iterable[Path] | None = None,
    ) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(EngineSpec)
        names = os.environ.get("ENGINE_BLOCK_PLUGINS", "").split(",")
        self._blocked = {_spelling(n) for n in (names if blocked is None else blocked) if n.strip()}
        self._claims: dict[tuple[str, str], list[Claim]] = {}
        self._misplaced: list[Claim] = []
        self._loaded: dict[Claim, Any] = {}
        self._made: dict[tuple[str, str], Any] = {}
        for claim in _claims(metadata.distributions() if distributions is None else distributions):
            if claim.kind not in HOOK_OF_KIND:
                self._misplaced.append(claim)
            elif not self._is_blocked(claim):
                self._claims.setdefault((claim.kind, claim.name), []).append(claim)
        for claim in _claims_of_files(files_in_force() if files is None else files):
            self._claims.setdefault((claim.kind, claim.name), []).append(claim)

    def _is_blocked(self, claim: Claim) -> bool:
        return not self._blocked.isdisjoint(
            {
                claim.name,
                f"{claim.kind}/{claim.name}",
                _spelling(f"{claim.distribution}:{claim.name}"),
            }
        )

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
        dist, _, plain = _spelling(name).rpartition(":")
        claims = self._claims.get((kind, plain)) or self._claims_by_alias(kind, plain)
        fitting = [c for c in claims if not dist or _canonical(c.distribution) == dist]
        if not fitting:
            raise UnknownPluginError(self._unknown(kind, name, claims))
        if len(fitting) > 1:
            raise DuplicatePluginError(_duplicate(kind, plain, fitting))
        return fitting[0]

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

    def _unknown(self, kind: str, name: str, elsewhere: list[Claim]) -> str:
        spelling, installed = _spelling(name), self.names(kind)
        installed += [one for one in self.family_names(kind) if one not in installed]
        dist, _, plain = spelling.rpartition(":")
        close = difflib.get_close_matches(plain, installed, n=1)
        if blocking := self._blocked & {spelling, plain, f"{kind}/{plain}"}:
            hint = f" ENGINE_BLOCK_PLUGINS blocks {min(blocking)!r}; take it out of there."
        elif elsewhere:
            owners = " and ".join(sorted(c.distribution for c in elsewhere))
            hint = f" {plain!r} comes from {owners}, not from {dist}."
        else:
            hint = f" Did you mean {close[0]!r}?" if close else ""
        listed = ", ".join(installed) or "none"
        return f"unknown {LABEL_OF_KIND[kind]} {name!r}.{hint} Installed: {listed}."

    def load(self, kind: str, name: str) -> Any:
        """Import the plugin that a name selects and return what it registers.

        A name that no distribution claims is offered to the families of that kind.

        Raises:
            UnknownPluginError: nothing installed has that name.
            DuplicatePluginError: two distributions have it.
            BrokenPluginError: it can't be imported or doesn't fit the contract.
        """
        try:
            claim = self.find(kind, name)
        except UnknownPluginError:
            if (made := self._from_families(kind, name)) is None:
                raise
            return made
        return self.load_claim(claim)

    def family_names(self, kind: str) -> list[str]:
        """Return the names that families of a kind can make, sorted; imports the families."""
        return sorted({name for family, _ in self._families(kind) for name in family.names()})

    def _families(self, kind: str) -> Iterator[tuple[Any, Claim]]:
        for claim in self.claims("families"):
            try:
                family = self.load_claim(claim)
            except PluginError:
                continue
            if kind == family.KIND:
                yield family, claim

    def _from_families(self, kind: str, name: str) -> Any:
        dist, _, plain = spelling = _spelling(name).rpartition(":")
        if (key := (kind, "".join(spelling))) in self._made:
            return self._made[key]
        if not self._blocked.isdisjoint({plain, f"{kind}/{plain}", "".join(spelling)}):
            return None
        found = []
        for family, claim in self._families(kind):
            if dist and _canonical(claim.distribution) != dist:
                continue
            who = f"{LABEL_OF_KIND[kind]} {plain!r} of {claim}"
            with _told_as_broken(who, claim.distribution):
                if (made := family.make(plain)) is not None:
                    check_registered(who, kind, plain, made)
                    found.append((claim, made))
        if len(found) > 1:
            raise DuplicatePluginError(_duplicate(kind, plain, [claim for claim, _ in found]))
        if found:
            self._made[key] = found[0][1]
        return self._made.get(key)

    def load_claim(self, claim: Claim) -> Any:
        """Import one claimed plugin, check it, and return what it registers.

        Raises:
            BrokenPluginError: it can't be imported or doesn't fit the contract.
        """
        if claim in self._loaded:
            return self._loaded[claim]
        who = f"{LABEL_OF_KIND[claim.kind]} {claim}"
        with _told_as_broken(who, claim.distribution):
            module = claim.entry_point.load()
            check_module(who, module)
            plugin = self._registered(who, claim, module)
        self._loaded[claim] = plugin
        return plugin

    def _registered(self, who: str, claim: Claim, module: Any) -> Any:
        hook = HOOK_OF_KIND[claim.kind]
        implemented = dict(self._implemented(module))
        check_hooks(who, claim.kind, implemented.items())
        plugin = implemented[hook]()
        check_registered(who, claim.kind, claim.name, plugin)
        # One module may stand behind several entry points.
        if not self._manager.is_registered(module):
            self._manager.register(module)
        return plugin

    def _implemented(self, module: Any) -> Iterator[tuple[str, Any]]:
        for attribute in dir(module):
            if (options := self._manager.parse_hookimpl_opts(module, attribute)) is not None:
                yield options["specname"] or attribute, getattr(module, attribute)

    def status(self, kind: str | None = None) -> list[PluginStatus]:
        """Import every plugin and say of each whether it can be used, and why not.

        An entry point of a misspelt group is among them, whatever `kind` is: it is meant for us.
        """
        rows = []
        for claim in self.claims(kind):
            try:
                rows.append(PluginStatus(claim, self.load_claim(claim), ""))
            except PluginError as error:
                rows.append(PluginStatus(claim, None, str(error), traceback.format_exc()))
        for claim in self._misplaced:
            if near := difflib.get_close_matches(claim.kind, HOOK_OF_KIND, n=1, cutoff=0.8):
                sentence = (
                    f"{claim}: the entry-point group {claim.entry_point.group} is none of ours; "
                    f"did {claim.distribution} mean {PROJECT}.{near[0]}?"
                )
                rows.append(PluginStatus(claim, None, sentence))
        return rows


@contextmanager
def _told_as_broken(who: str, distribution: str) -> Iterator[None]:
    """Turn whatever a stranger's code raises into one sentence about it."""
    try:
        yield
    except PluginError:
        raise
    # An import may fail in any way, and may even want to end the process.
    except (Exception, SystemExit) as error:
        said = next(iter(str(error).splitlines()), "")
        raise BrokenPluginError(
            f"cannot load {who}: {type(error).__name__}: {said}; repair or uninstall "
            f"{distribution}."
        ) from error


def _claims(distributions: Iterable[metadata.Distribution]) -> Iterator[Claim]:
    seen: set[str] = set()
    for dist in distributions:
        try:
            name, version = _field(dist, "Name"), _field(dist, "Version")
            entry_points = tuple(dist.entry_points)
        except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            logger.warning("skipping the unreadable metadata of %s: %s", dist, error)
            continue
        # A distribution that is on sys.path twice (an editable install beside its build
        # folder) is one distribution: the first one found is the one that imports.
        if not name or (key := _canonical(name)) in seen:
            continue
        seen.add(key)
        for entry_point in entry_points:
            prefix, _, kind = entry_point.group.partition(".")
            if prefix == PROJECT:
                yield Claim(kind, normalize(entry_point.name), name, version, entry_point)


def _claims_of_files(files: Iterable[Path]) -> Iterator[Claim]:
    """Yield the claims of plugin files; a file is a distribution of its own, called by its path."""
    for path in files:
        for kind, name, module in plugins_of(path):
            entry_point = metadata.EntryPoint(name, module, f"{PROJECT}.{kind}")
            yield Claim(kind, normalize(name), str(path), "(a file)", entry_point)


def _field(dist: metadata.Distribution, name: str) -> str:
    """Return one line of a distribution's metadata; empty when it is missing."""
    return next(iter(dist.metadata.get_all(name) or ()), "")


def _canonical(distribution: str) -> str:
    """Return a distribution's name as installers compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _spelling(name: str) -> str:
    dist, colon, plain = normalize(name).rpartition(":")
    return f"{_canonical(dist)}{colon}{plain}"


def _duplicate(kind: str, name: str, claims: list[Claim]) -> str:
    listed = " and ".join(sorted(map(str, claims)))
    owners = sorted({c.distribution for c in claims})
    if len(owners) == 1:
        return (
            f"{LABEL_OF_KIND[kind]} {name!r} is claimed twice by {owners[0]}: {listed}. "
            "Upgrade or uninstall it."
        )
    choices = " or ".join(sorted(f"{c.distribution}:{c.name}" for c in claims))
    return (
        f"{LABEL_OF_KIND[kind]} {name!r} is claimed by two distributions: {listed}. "
        f"Select one as {choices}, uninstall one, or block one with "
        f"ENGINE_BLOCK_PLUGINS=distribution:name."
    )
