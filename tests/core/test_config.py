"""The typed configuration: what may be set, what is refused and how."""

from __future__ import annotations

import copy
import random
import subprocess
import sys

import pytest
from pydantic import BaseModel

from engine.config import CompilationConfig, EngineConfig, human_int
from engine.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("4_096", 4096),
        ("32k", 32_000),
        ("32K", 32_000),
        ("2ki", 2048),
        ("2KiB", 2048),
        ("1.5GiB", 3 * 2**29),
        ("512 MiB", 2**29),
        ("1g", 10**9),
        ("0.5kb", 500),
    ],
)
def test_a_number_may_be_written_as_people_write_it(text: str, number: int) -> None:
    assert human_int(text) == number
    assert EngineConfig(kv_cache_memory=text).kv_cache_memory == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "0.3k5", "12 apples", "-4k", "1e3", "GiB"])
def test_what_is_no_whole_number_is_left_to_the_validator(text: str) -> None:
    assert human_int(text) == text
    with pytest.raises(ConfigError, match=r"^max_num_seqs="):
        EngineConfig(max_num_seqs=text)


def test_a_number_stays_a_number() -> None:
    value = random.randrange(1, 10**9)
    assert human_int(value) == value


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs=0: Input should be greater than or equal to 1"),
        ({"max_model_len": -5}, "max_model_len=-5: "),
        ({"dtype": "float8"}, "dtype='float8': Input should be 'auto', 'float32', 'bfloat16' or "),
        ({"memory_utilization": 1.5}, "memory_utilization=1.5: "),
        ({"optimization_level": 4}, "optimization_level=4: "),
        ({"num_kv_blocks": 1}, "num_kv_blocks=1: "),
        ({"compilation_config": {"capture": "never"}}, "compilation_config.capture='never': "),
        ({"compilation_config": {"mod": "x"}}, "compilation_config.mod: no such setting"),
        ({"max_seqs": 3}, "max_seqs: no such setting; see `engine serve --help`"),
    ],
)
def test_a_bad_value_is_one_sentence_with_the_field_and_the_value(
    values: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**values)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_every_bad_value_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(max_num_seqs=0, block_size=0)
    assert str(caught.value).count("greater than or equal to 1") == 2


def test_a_configuration_can_not_be_changed_behind_anyones_back() -> None:
    config = EngineConfig()
    for field in ("seed", "compilation_config"):
        with pytest.raises(ValueError, match="frozen"):
            setattr(config, field, 3)
    with pytest.raises(ValueError, match="frozen"):
        setattr(config.compilation_config, "capture", "lazy")  # noqa: B010  # mypy knows it is frozen


def test_two_configurations_share_nothing_that_can_be_changed() -> None:
    one, other = EngineConfig(), EngineConfig()
    one.hf_overrides["rope_theta"] = 1.0
    one.compilation_config.backend_options["key"] = 1
    assert other.hf_overrides == {}
    assert other.compilation_config.backend_options == {}
    assert CompilationConfig().backend_options == {}


def test_a_copy_equals_the_original_and_json_brings_it_back() -> None:
    config = EngineConfig(
        model="folder",
        seed=random.randrange(10**6),
        compilation_config=CompilationConfig(cudagraph_capture_sizes=(1, 2), passes=("+a", "-b")),
    )
    assert copy.deepcopy(config) == config
    assert EngineConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("model", [EngineConfig, CompilationConfig])
def test_every_setting_is_described(model: type[BaseModel]) -> None:
    # The sentences are what `--help` and the documentation show.
    undescribed = [name for name, field in model.model_fields.items() if not field.description]
    assert undescribed == []


def test_configuring_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from engine import CompilationConfig, EngineConfig\n"
        "EngineConfig(compilation_config=CompilationConfig())\n"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
