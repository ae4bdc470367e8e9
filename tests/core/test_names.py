"""Open typed constants: `CompilationMode.X` for whatever name is installed."""

from __future__ import annotations

import copy
import pickle
import random

import pytest

from engine.config import CompilationConfig
from engine.errors import ConfigError
from engine.names import BackendName, CompilationMode, CUDAGraphMode, PluginName, normalize
from engine.registry import Registry
from engine.testing.distributions import PluginMaker

AXES = [
    (CompilationMode, "compile_modes"),
    (CUDAGraphMode, "cudagraph_modes"),
    (BackendName, "backends"),
]


def misspell(name: str) -> str:
    """Return the name in another case and with other separators."""
    return "".join(random.choice([c.upper(), c.lower()]) for c in name).replace(
        "_", random.choice("-_")
    )


@pytest.mark.parametrize(("axis", "kind"), AXES)
def test_every_installed_name_is_a_constant(axis: type[PluginName], kind: str) -> None:
    names = Registry().names(kind)
    assert names
    assert [str(name) for name in axis] == names
    for name in names:
        constant = getattr(axis, name.upper())
        assert type(constant) is axis
        assert constant == name
        assert name.upper() in dir(axis)


def test_a_strangers_mode_reads_like_a_built_in(make_plugin: PluginMaker) -> None:
    make_plugin("my_mode")
    constant = CompilationMode.MY_MODE
    assert constant == "my_mode"
    assert CompilationConfig(mode=constant).mode == constant


def test_a_misspelt_constant_fails_at_once_with_the_nearest_one(make_plugin: PluginMaker) -> None:
    make_plugin("turbo")
    with pytest.raises(AttributeError, match=r"CompilationMode\.TRUBO: not installed\.") as caught:
        _ = CompilationMode.TRUBO
    assert "Did you mean CompilationMode.TURBO?" in str(caught.value)
    assert "TURBO" in str(caught.value).partition("Has: ")[2]


def test_a_constant_of_another_axis_is_not_a_member(make_plugin: PluginMaker) -> None:
    make_plugin("only_a_backend", kind="backends")
    assert BackendName.ONLY_A_BACKEND == "only_a_backend"
    with pytest.raises(AttributeError):
        _ = CompilationMode.ONLY_A_BACKEND


@pytest.mark.parametrize("attribute", ["lower_case", "_PRIVATE", "Mixed_Case"])
def test_only_upper_case_attributes_are_names(make_plugin: PluginMaker, attribute: str) -> None:
    make_plugin(attribute.strip("_").lower())
    assert not hasattr(CompilationMode, attribute)


def test_reading_a_constant_imports_no_plugin(make_plugin: PluginMaker) -> None:
    make_plugin("explosive", preamble="raise SystemExit('imported')")
    assert CompilationMode.EXPLOSIVE == "explosive"


@pytest.mark.parametrize("axis", [axis for axis, _ in AXES])
def test_any_spelling_makes_the_same_constant(axis: type[PluginName]) -> None:
    for _ in range(20):
        name = "_".join(random.choices(["full", "vllm", "and", "x2"], k=3))
        assert axis(misspell(name)) == axis(name) == name
        assert hash(axis(misspell(name))) == hash(name)


def test_a_distribution_prefix_keeps_its_own_spelling() -> None:
    assert normalize("My-Dist:Fast-Mode") == "My-Dist:fast_mode"
    assert CompilationMode("My-Dist:Fast-Mode") == "My-Dist:fast_mode"


def test_a_constant_says_its_axis_and_survives_copying() -> None:
    constant = CUDAGraphMode("full")
    assert repr(constant) == "CUDAGraphMode('full')"
    assert f"{constant}" == "full"
    for copied in (copy.deepcopy(constant), pickle.loads(pickle.dumps(constant))):
        assert type(copied) is CUDAGraphMode
        assert copied == constant


def test_a_plain_string_is_accepted_where_a_constant_is() -> None:
    config = CompilationConfig(mode="Some-Mode", cudagraph_mode="FULL", backend="my_dist:x")
    assert (type(config.mode), config.mode) == (CompilationMode, "some_mode")
    assert (type(config.cudagraph_mode), config.cudagraph_mode) == (CUDAGraphMode, "full")
    assert config.backend == "my_dist:x"


def test_a_configuration_with_constants_becomes_json_and_back() -> None:
    config = CompilationConfig(mode=CompilationMode("some_mode"))
    assert config.model_dump(mode="json")["mode"] == "some_mode"
    assert CompilationConfig.model_validate_json(config.model_dump_json()) == config


def test_what_is_no_name_is_refused_with_the_field() -> None:
    with pytest.raises(ConfigError, match=r"^mode=3: "):
        CompilationConfig(mode=3)
