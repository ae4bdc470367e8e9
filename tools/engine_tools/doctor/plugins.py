"""Check of the installed plugins, as far as it goes without loading torch."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from importlib import metadata

from engine.errors import PluginError
from engine.hookspecs import HOOK_OF_KIND, LABEL_OF_KIND, PROJECT
from engine.plugin_checks import check_module
from engine.registry import Claim
from engine_tools.doctor.finding import Finding, Reporter
from engine_tools.doctor.subject import Subject
from engine_tools.doctor.versions import DISTRIBUTION, unmet


def check_plugins(subject: Subject) -> Iterator[Finding]:
    """Import each plugin's light module, and see that its contract and requirements fit.

    What a module registers isn't loaded, since that brings torch: `engine plugins` does it.
    """
    say = Reporter("plugins")
    claims = subject.registry.claims()
    problems = [*_misplaced(say), *_clashes(say, claims), *_unmet_of_strangers(say, claims)]
    problems += [
        say.error(
            f"{LABEL_OF_KIND[claim.kind]} {claim}: {reason}",
            f"repair or uninstall {claim.distribution}; `engine plugins` tells more",
        )
        for claim in claims
        if (reason := _broken(claim))
    ]
    yield from problems
    if not problems:
        owners = {claim.distribution for claim in claims}
        yield say.ok(f"{len(claims)} plugins of {len(owners)} distributions; none is broken")


def _broken(claim: Claim) -> str:
    who = f"{LABEL_OF_KIND[claim.kind]} {claim}"
    try:
        check_module(who, claim.entry_point.load())
    except PluginError as error:
        return str(error).removeprefix(who).strip()
    # A stranger's import may fail in any way, and may even want to end the process.
    except (Exception, SystemExit) as error:  # noqa: BLE001 - see above
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return ""


def _clashes(say: Reporter, claims: list[Claim]) -> Iterator[Finding]:
    owners = Counter((claim.kind, claim.name) for claim in claims)
    for (kind, name), count in owners.items():
        if count > 1:
            dists = [c.distribution for c in claims if (c.kind, c.name) == (kind, name)]
            yield say.warning(
                f"{LABEL_OF_KIND[kind]} {name!r} is claimed by {' and '.join(dists)}",
                f"select one as {dists[0]}:{name}, or uninstall one",
            )


def _misplaced(say: Reporter) -> Iterator[Finding]:
    """Tell entry points whose group is nearly one of ours."""
    # An editable install beside its build is on the path twice.
    entries = {entry for dist in metadata.distributions() for entry in dist.entry_points}
    for entry in sorted(entries, key=str):
        prefix, _, kind = entry.group.partition(".")
        if prefix != PROJECT or kind in HOOK_OF_KIND:
            continue
        if near := difflib.get_close_matches(kind, HOOK_OF_KIND, n=1, cutoff=0.8):
            yield say.error(
                f"{entry.name!r} ({entry.value}) is in the group {entry.group}, none of ours",
                f"its author may mean {PROJECT}.{near[0]}",
            )


def _unmet_of_strangers(say: Reporter, claims: list[Claim]) -> Iterator[Finding]:
    for name in sorted({claim.distribution for claim in claims} - {DISTRIBUTION}):
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # a plugin file, which has no metadata
        for problem in unmet(requirements):
            yield say.error(f"plugin distribution {name}: {problem}", f"reinstall {name} with pip")
