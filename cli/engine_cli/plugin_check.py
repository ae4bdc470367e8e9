"""`engine plugins check`: does a plugin keep the contract? The quick part of the kit says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from engine.errors import PluginError
from engine.hookspecs import BASE_OF_KIND
from engine.registry import Claim, Registry
from engine_cli.examples import with_examples
from engine_cli.plugin_selection import json_option, kind_option, matching
from engine_cli.state import command_settings, debug_option, plugin_option, state_of


@click.pass_context
def _check(
    context: click.Context, /, name: str | None, kind: str | None, full: bool, as_json: bool
) -> int:
    registry = state_of(context).registry
    claims = registry.claims(kind) if name is None else matching(registry, name, kind)
    results = []
    for result in _results(registry, claims, full=full):
        results.append(result)
        if not as_json:
            _tell(result)
    if as_json:
        click.echo(json.dumps(results, indent=2))
    return 0 if all(result["state"] == "ok" for result in results) else 2


def _results(registry: Registry, claims: list[Claim], *, full: bool) -> Iterator[dict[str, Any]]:
    for claim in claims:
        result: dict[str, Any] = {
            "kind": claim.kind,
            "name": claim.name,
            "distribution": claim.distribution,
            "state": "ok",
            "reason": "",
            "checks": [],
        }
        try:
            plugin = registry.load_claim(claim)
        except PluginError as error:
            yield result | {"state": "broken", "reason": str(error)}
            continue
        checks = _outcomes(claim, plugin, full=full)
        failed = sum(check["state"] == "failed" for check in checks)
        yield result | {
            "state": "failed" if failed else "ok",
            "reason": f"{failed} of {len(checks)} checks failed" if failed else "",
            "checks": checks,
        }


def _outcomes(claim: Claim, plugin: Any, *, full: bool) -> list[dict[str, str]]:
    """Run the checks of a plugin's kind; none for a kind that registers no class."""
    if claim.kind not in BASE_OF_KIND or claim.kind == "families":
        return []
    import engine.testing as kit

    base = getattr(kit, kit.SUITES.get(claim.kind, "PluginConformance"))
    # A file has no metadata that another process could find it by.
    found = f"{claim.distribution}:{claim.name}" if claim.version != "(a file)" else plugin
    suite = type("Checked", (base,), {"KIND": claim.kind, "strategy": found})
    return [
        {
            "name": outcome.name,
            "state": outcome.state,
            "contract": outcome.contract,
            "detail": outcome.detail,
        }
        for outcome in kit.run_checks(suite, quick=not full)
    ]


def _tell(result: dict[str, Any]) -> None:
    states = [check["state"] for check in result["checks"]]
    passed, skipped = states.count("passed"), states.count("skipped")
    colour = {"ok": "green", "failed": "red", "broken": "red"}[result["state"]]
    state = click.style(result["state"], fg=colour)
    counts = f"{passed} checks passed" + f", {skipped} don't concern it" * bool(skipped)
    said = result["reason"] or (counts if states else "it loads; its kind has no checks")
    click.echo(f"{result['kind']}/{result['name']}: {state}: {said}")
    for check in result["checks"]:
        if check["state"] == "failed":
            click.echo(f"  {check['name']}")
            for line in check["detail"].splitlines():
                click.echo(f"    {line}")


check = click.Command(
    "check",
    callback=_check,
    context_settings=command_settings(),
    params=[
        click.Argument(["name"], required=False),
        kind_option(),
        click.Option(["--full"], is_flag=True, help="Run the whole conformance kit (minutes)."),
        json_option(),
        plugin_option(),
        debug_option(),
    ],
    help=with_examples(
        "Check that plugin NAME, or every installed one, keeps the contract: it imports, was "
        "written for this version, and passes the quick part of the conformance kit. "
        "Ends with 2 when one doesn't.",
        "engine plugins check",
        "engine plugins check compile_modes/none --full",
    ),
)
