"""Finding and loading plugins, with real distributions written for each test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import DuplicatePluginError, UnknownPluginError
from engine.hookspecs import BASE_OF_KIND, HOOK_OF_KIND, LABEL_OF_KIND, EngineSpec
from engine.registry import Registry
from engine.testing.distributions import PluginMaker

# Listing


def test_every_built_in_is_listed_and_loads() -> None:
    broken = [str(row.error) for row in Registry().status() if row.state != "ok"]
    assert broken == []


def test_listing_imports_nothing(make_plugin: PluginMaker) -> None:
    made = [make_plugin(f"lazy_{kind}", kind=kind) for kind in ("backends", "compile_modes")]
    registry = Registry()
    assert "lazy_backends" in registry.names("backends")
    assert "lazy_compile_modes" in [claim.name for claim in registry.claims()]
    registry.find("backends", "lazy_backends")
    assert not sys.modules.keys() & {plugin.module for plugin in made}


def test_loading_imports_only_what_was_asked_for(make_plugin: PluginMaker) -> None:
    wanted, other = make_plugin("wanted"), make_plugin("other")
    loaded = Registry().load("compile_modes", "wanted")
    assert (loaded.NAME, loaded.__module__) == ("wanted", wanted.module)
    assert other.module not in sys.modules


def test_a_kind_lists_its_own_names_only_and_sorted(make_plugin: PluginMaker) -> None:
    for name in ("zeta", "alpha"):
        make_plugin(name, kind="backends")
    make_plugin("foreign", kind="compile_modes")
    names = Registry().names("backends")
    assert names == sorted(names)
    assert {"alpha", "zeta"} <= set(names)
    assert "foreign" not in names


def test_a_claim_says_where_a_plugin_comes_from(make_plugin: PluginMaker) -> None:
    made = make_plugin("mine", distribution="my-plugins", version="2.5")
    assert str(Registry().find("compile_modes", "mine")) == (
        f"'mine' from my-plugins 2.5 ({made.module})"
    )


def test_a_distribution_found_twice_on_the_path_claims_once(
    make_plugin: PluginMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_plugin("twice", distribution="My.Plugins")
    # Installers treat these as one name; so does an editable install beside a build folder.
    copy = tmp_path / "copy" / "my_plugins-1.0.dist-info"
    copy.mkdir(parents=True)
    (copy / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugins\nVersion: 1.0\n")
    (copy / "entry_points.txt").write_text("[engine.compile_modes]\ntwice = elsewhere\n")
    monkeypatch.syspath_prepend(copy.parent)
    monkeypatch.syspath_prepend(made.folder)
    assert Registry().load("compile_modes", "twice").__module__ == made.module


def test_every_hook_has_a_kind_a_label_and_a_spec() -> None:
    hooks = {name for name in vars(EngineSpec) if name.startswith("engine_register_")}
    assert set(HOOK_OF_KIND.values()) == hooks
    assert HOOK_OF_KIND.keys() == LABEL_OF_KIND.keys()
    assert BASE_OF_KIND.keys() <= HOOK_OF_KIND.keys()


# Names


@pytest.mark.parametrize("spelling", ["fast_mode", "FAST_MODE", "Fast-Mode", " fast-mode "])
def test_any_spelling_of_a_name_selects_it(make_plugin: PluginMaker, spelling: str) -> None:
    make_plugin("fast_mode")
    assert Registry().load("compile_modes", spelling).NAME == "fast_mode"


def test_an_entry_point_may_be_spelt_in_any_case(make_plugin: PluginMaker) -> None:
    make_plugin("Fast-Mode", attributes={"NAME": "fast_mode"})
    registry = Registry()
    assert "fast_mode" in registry.names("compile_modes")
    assert registry.load("compile_modes", "FAST_MODE").NAME == "fast_mode"


def test_an_alias_selects_and_a_real_name_wins_over_it(make_plugin: PluginMaker) -> None:
    make_plugin("modern", attributes={"ALIASES": ("Old-Name", "taken")})
    make_plugin("taken")
    registry = Registry()
    assert registry.find("compile_modes", "OLD_NAME").name == "modern"
    assert registry.find("compile_modes", "taken").name == "taken"


def test_a_broken_neighbour_does_not_hide_an_alias(make_plugin: PluginMaker) -> None:
    make_plugin("a_broken_one", preamble="import nothing_of_that_name")
    make_plugin("modern", attributes={"ALIASES": ("older",)})
    assert Registry().load("compile_modes", "older").NAME == "modern"


def test_an_alias_that_two_plugins_declare_is_a_duplicate(make_plugin: PluginMaker) -> None:
    for name in ("one", "two"):
        make_plugin(name, distribution=f"dist-{name}", attributes={"ALIASES": ("shared",)})
    with pytest.raises(DuplicatePluginError, match=r"dist-one:one or dist-two:two"):
        Registry().find("compile_modes", "shared")


def test_one_name_may_be_used_in_two_kinds(make_plugin: PluginMaker) -> None:
    mode, backend = make_plugin("same"), make_plugin("same", kind="backends")
    registry = Registry()
    assert registry.load("compile_modes", "same").__module__ == mode.module
    assert registry.load("backends", "same").__module__ == backend.module


def test_an_unknown_name_gets_the_nearest_one_and_the_list(make_plugin: PluginMaker) -> None:
    make_plugin("turbo")
    registry = Registry()
    with pytest.raises(UnknownPluginError) as caught:
        registry.load("compile_modes", "trubo")
    installed = ", ".join(registry.names("compile_modes"))
    assert str(caught.value) == (
        f"unknown compilation mode 'trubo'. Did you mean 'turbo'? Installed: {installed}."
    )


def test_a_name_like_no_other_gets_the_list_only(make_plugin: PluginMaker) -> None:
    with pytest.raises(UnknownPluginError) as caught:
        Registry().load("backends", "qqqqqqqq")
    assert str(caught.value).startswith("unknown backend 'qqqqqqqq'. Installed: ")


# Two distributions, one name


@pytest.mark.parametrize("order", [("first-dist", "second-dist"), ("second-dist", "first-dist")])
def test_two_claims_to_a_name_are_an_error_that_names_both(
    make_plugin: PluginMaker, order: tuple[str, str]
) -> None:
    made = {owner: make_plugin("shared", distribution=owner) for owner in order}
    registry = Registry()
    with pytest.raises(DuplicatePluginError) as caught:
        registry.load("compile_modes", "shared")
    assert str(caught.value) == (
        "compilation mode 'shared' is claimed by two distributions: "
        f"'shared' from first-dist 1.0 ({made['first-dist'].module}) and "
        f"'shared' from second-dist 1.0 ({made['second-dist'].module}). "
        "Select one as first-dist:shared or second-dist:shared, uninstall one, or block one with "
        "ENGINE_BLOCK_PLUGINS=distribution:name."
    )


@pytest.mark.parametrize("spelling", ["second-dist:shared", "Second_Dist:SHARED"])
def test_a_distribution_selects_among_two_claims(make_plugin: PluginMaker, spelling: str) -> None:
    make_plugin("shared", distribution="first-dist")
    second = make_plugin("shared", distribution="second-dist")
    registry = Registry()
    assert registry.load("compile_modes", spelling).__module__ == second.module
    assert {row.state for row in registry.status() if row.claim.name == "shared"} == {"ok"}


def test_a_stranger_may_claim_a_built_in_name_but_does_not_replace_it(
    make_plugin: PluginMaker,
) -> None:
    (built_in, *_) = Registry().claims("compile_modes")
    make_plugin(built_in.name, distribution="stranger")
    registry = Registry()
    with pytest.raises(DuplicatePluginError, match="stranger"):
        registry.load("compile_modes", built_in.name)
    ours = f"{built_in.distribution}:{built_in.name}"
    assert registry.load("compile_modes", ours) is Registry().load("compile_modes", ours)


def test_the_wrong_distribution_of_a_name_is_told_the_right_one(make_plugin: PluginMaker) -> None:
    make_plugin("mine", distribution="right-dist")
    with pytest.raises(UnknownPluginError, match="'mine' comes from right-dist, not from wrong"):
        Registry().find("compile_modes", "wrong:mine")


def test_one_distribution_claiming_a_name_twice_is_told_so(make_plugin: PluginMaker) -> None:
    make_plugin("two-ways", distribution="sloppy")
    make_plugin("two_ways", distribution="sloppy")
    with pytest.raises(DuplicatePluginError, match=r"claimed twice by sloppy: .*Upgrade or unins"):
        Registry().find("compile_modes", "two_ways")


def test_one_module_may_register_plugins_of_two_kinds(make_plugin: PluginMaker) -> None:
    made = make_plugin("both", distribution="both-dist")
    module = made.folder / f"{made.module}.py"
    module.write_text(
        module.read_text()
        + "\nfrom engine.strategies import Backend\n"
        + "class MadeBackend(Backend):\n"
        + "    NAME, SUMMARY = 'both', 'the other half'\n"
        + "    def compile(self, graph, example_inputs, *, dynamic):\n"
        + "        return graph.forward\n"
        + "@hookimpl\n"
        + "def engine_register_backend():\n"
        + "    return MadeBackend\n"
    )
    entry_points = made.folder / "both_dist-1.0.dist-info" / "entry_points.txt"
    with entry_points.open("a") as file:
        file.write(f"[engine.backends]\nboth = {made.module}\n")
    registry = Registry()
    assert registry.load("compile_modes", "both").__name__ == "Made"
    assert registry.load("backends", "both").__name__ == "MadeBackend"


# Blocked


@pytest.mark.parametrize(
    "blocked",
    ["noisy", "NOISY", "compile-modes/noisy", "loud-dist:noisy", "x, noisy ,", "Loud_Dist:noisy"],
)
def test_a_blocked_plugin_is_as_if_not_installed(
    make_plugin: PluginMaker, monkeypatch: pytest.MonkeyPatch, blocked: str
) -> None:
    make_plugin("noisy", distribution="loud-dist")
    make_plugin("quiet", distribution="loud-dist")
    monkeypatch.setenv("ENGINE_BLOCK_PLUGINS", blocked)
    names = Registry().names("compile_modes")
    assert "noisy" not in names
    assert "quiet" in names
    with pytest.raises(UnknownPluginError, match=r"ENGINE_BLOCK_PLUGINS blocks .*take it out"):
        Registry().load("compile_modes", "loud-dist:noisy")


def test_blocking_one_of_two_claims_leaves_the_other(make_plugin: PluginMaker) -> None:
    make_plugin("shared", distribution="first-dist")
    second = make_plugin("shared", distribution="second-dist")
    registry = Registry(blocked=["first-dist:shared"])
    assert registry.load("compile_modes", "shared").__module__ == second.module


def test_another_process_finds_the_same_plugins(make_plugin: PluginMaker) -> None:
    made = make_plugin("mine")
    code = "from engine.registry import Registry; print(Registry().load('compile_modes', 'mine'))"
    environment = os.environ | {"PYTHONPATH": str(made.folder)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == f"<class '{made.module}.Made'>"
