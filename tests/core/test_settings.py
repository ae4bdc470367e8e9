"""Settings from several sources: who wins, who is remembered, what a mistake is answered."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from engine.config import CompilationConfig, EngineConfig
from engine.errors import ConfigError
from engine.settings import Layer, Settings, Statement, agree, as_settings, build, merge
from engine.settings_schema import Schema, SettingField
from engine.settings_sources import read_environment, read_file

SCHEMA = Schema.of(EngineConfig)
SOURCES = ("command line", "environment", "file")
SPELLED = {"command line": "--seed", "environment": "ENGINE_SEED", "file": "engine.yaml"}


def example(field: SettingField) -> object:
    """A valid value that isn't the default, as a configuration file would hold it."""
    if field.is_group:
        return {"capture": "lazy"}
    if field.is_mapping:
        return {f"key{random.randrange(99)}": random.randrange(99)}
    if field.is_flag:
        return not field.default
    if field.choices:
        return random.choice([c for c in field.choices if c != str(field.default)])
    if field.name == "optimization_level":
        return random.choice([0, 1, 3])
    if field.is_list:
        whole = "int" in str(field.type)
        return random.sample(range(1, 99), 3) if whole else ["some::op", "other"]
    if field.type is int:
        return random.randrange(300, 400)
    if field.type is float:
        return random.choice([0.25, 0.5])
    return f"name_{random.randrange(99)}"


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def value_of(settings: Settings, field: SettingField) -> object:
    value: object = settings.config
    for part in field.name.split("."):
        value = getattr(value, part)
    return value


def expected(field: SettingField, value: object) -> object:
    if field.is_group:
        return CompilationConfig(**value)  # type: ignore[arg-type]  # the test's own values
    return field.validate(value)


@pytest.mark.parametrize("present", range(8))
def test_the_first_source_that_speaks_wins_and_is_remembered(present: int) -> None:
    speaking = [source for bit, source in enumerate(SOURCES) if present >> bit & 1]
    seeds = {source: random.randrange(1, 10**6) for source in SOURCES}
    layers = [
        Layer(
            SPELLED[s] if s == "file" else s,
            {"seed": seeds[s]} if s in speaking else {},
            {} if s == "file" else {"seed": SPELLED[s]},
        )
        for s in SOURCES
    ]
    settings = merge(layers)
    if speaking:
        assert settings.config.seed == seeds[speaking[0]]
        assert settings.origins == {"seed": SPELLED[speaking[0]]}
    else:
        assert settings.config.seed == EngineConfig().seed
        assert settings.origins == {}


def test_options_are_merged_key_by_key() -> None:
    name = "compilation_config.backend_options"
    settings = merge(
        [
            Layer("first", {f"{name}.a": 1}),
            Layer("second", {name: {"a": 2, "b": {"deep": 3}}}),
            Layer("third", {"compilation_config": {"backend_options": {"c": 4}, "mode": "x"}}),
        ]
    )
    config = settings.config.compilation_config
    assert config.backend_options == {"a": 1, "b": {"deep": 3}, "c": 4}
    assert config.mode == "x"
    assert settings.origins == {
        f"{name}.a": "first",
        f"{name}.b": "second",
        f"{name}.c": "third",
        "compilation_config.mode": "third",
    }


def test_an_explicit_null_asks_for_the_default_over_later_sources() -> None:
    settings = merge([Layer("first", {"max_model_len": None}), Layer("x", {"max_model_len": 7})])
    assert settings.config.max_model_len is None
    assert settings.origins == {}


@pytest.mark.parametrize("field", SCHEMA.fields.values(), ids=lambda f: f.name)
def test_every_field_can_be_set_from_the_environment(field: SettingField) -> None:
    value = example(field)
    layer, ignored = read_environment({field.variable: as_text(value)}, SCHEMA)
    settings = merge([layer])
    assert value_of(settings, field) == expected(field, value) != field.default
    assert all(origin.startswith(field.variable) for origin in settings.origins.values())
    assert ignored == []


@pytest.mark.parametrize("field", SCHEMA.fields.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("suffix", [".yaml", ".toml", ".json"])
def test_every_field_can_be_set_from_a_file(
    field: SettingField, suffix: str, tmp_path: Path
) -> None:
    value = example(field)
    spelling = random.choice([field.name, field.short, field.short.replace("_", "-")])
    path = tmp_path / f"engine{suffix}"
    if suffix == ".toml":
        inline = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
        text = inline or json.dumps(value)
        if isinstance(value, dict):
            text = "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items()) + "}"
        path.write_text(f"{json.dumps(spelling)} = {text}\n")
    else:
        path.write_text(json.dumps({spelling: value}))
    settings = merge([read_file(path, SCHEMA)])
    assert value_of(settings, field) == expected(field, value) != field.default
    assert set(settings.origins.values()) == {path.name}


def test_a_file_may_be_nested_flat_or_short_with_hyphens_or_underscores(tmp_path: Path) -> None:
    wanted = EngineConfig(
        max_model_len=32_000,
        compilation_config=CompilationConfig(mode="a_b", cudagraph_capture_sizes=(1, 2)),
    )
    spellings = {
        "nested.yaml": "max-model-len: 32k\n"
        "compilation-config:\n  mode: a-b\n  cudagraph-capture-sizes: [1, 2]\n",
        "flat.yaml": "max_model_len: 32000\ncompilation_config.mode: A_B\n"
        "compilation-config.cudagraph_capture_sizes: 1,2\n",
        "short.toml": 'max_model_len = "32k"\ncompilation-mode = "a_b"\n'
        "cudagraph-capture-sizes = [1, 2]\n",
        "table.toml": 'max_model_len = 32000\n[compilation_config]\nmode = "a_b"\n'
        "cudagraph_capture_sizes = [1, 2]\n",
    }
    for name, text in spellings.items():
        path = tmp_path / name
        path.write_text(text)
        assert merge([read_file(path, SCHEMA)]).config == wanted, name


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("dtype", "float33", "--x=float33: must be auto, float32, bfloat16 or float16. Did you"),
        ("max_model_len", "12x", "--x=12x: must be a valid integer"),
        ("max_num_seqs", -5, "--x=-5: must be greater than or equal to 1"),
        ("memory_utilization", "lots", "--x=lots: must be a valid number"),
        ("memory_utilization", "1.5", "--x=1.5: must be less than or equal to 1"),
        ("enable_prefix_caching", "maybe", "--x=maybe: must be true or false"),
        ("model", 5, "--x=5: must be a valid string"),
        ("compilation_config.cudagraph_capture_sizes", "1,y", "--x=1,y: item 2 must be a valid"),
        ("compilation_config", "[1", "--x=[1: must be JSON or YAML"),
        ("compilation_config", "7", '--x=7: must be names with values: {"name": value}'),
        ("hf_overrides", "a=1,b", "--x=a=1,b: must be key=value"),
        ("dtyp", "float32", "--x: no such setting. Did you mean 'dtype'?"),
        ("cudagraph_mod", "x", "--x: no such setting. Did you mean 'cudagraph_mode'?"),
        ("compilation_config", {"moed": 1}, "--x.moed: no such setting. Did you mean 'mode'?"),
        ("qqq", "x", "--x: no such setting. See"),
    ],
)
def test_a_mistake_is_answered_with_spelling_value_and_what_is_allowed(
    name: str, value: object, says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        merge([Layer("command line", {name: value}, {name: "--x"})])
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        merge([Layer("a", {"seed": "x"}), Layer("b", {"threads": 0, "nope": 1})])
    assert len(str(error.value).splitlines()) == 3


def test_a_value_that_a_higher_source_overrides_does_not_have_to_be_valid() -> None:
    assert merge([Layer("a", {"seed": 1}), Layer("b", {"seed": "x"})]).config.seed == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dtype: float33", "engine.yaml: dtype=float33: must be auto"),
        ("dtyp: float32", "engine.yaml: dtyp: no such setting. Did you mean 'dtype'?"),
        ("compilation-config: {moed: 1}", "engine.yaml: compilation-config.moed: no such"),
        ("dtype: float32\ndtype: float16", "'dtype' is given twice in the block at line 1"),
        (
            "mode: x\ncompilation_config: {mode: y}",
            "mode: no such setting. Did you mean 'compilation_mode'?",
        ),
        (
            "compilation_mode: x\ncompilation_config: {mode: y}",
            "=x and engine.yaml: compilation_config.mode=y contradict each other; keep one",
        ),
        ("a: [", "is not YAML"),
        ("- a", "must hold names with values"),
    ],
)
def test_a_bad_file_is_named_with_the_place_of_the_mistake(
    text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        merge([read_file(path, SCHEMA)])
    assert says in str(error.value)
    assert "engine.yaml" in str(error.value)


def test_unreadable_files_are_a_sentence_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "x.ini").write_text("")
    (tmp_path / "bad.toml").write_text("a = = 1")
    (tmp_path / "folder.yaml").mkdir()
    sentences = {
        "absent.yaml": "no such configuration file",
        "binary.yaml": "is not a text file",
        "x.ini": "must end in .yaml, .yml, .toml or .json",
        "bad.toml": "is not TOML",
        "folder.yaml": "can't be read: Is a directory",
    }
    for name, says in sentences.items():
        with pytest.raises(ConfigError, match=says) as error:
            read_file(tmp_path / name, SCHEMA)
        assert name in str(error.value)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert merge([read_file(tmp_path / "empty.yaml", SCHEMA)]) == Settings(EngineConfig())


def test_a_misspelt_variable_is_an_error_and_a_foreign_one_a_line() -> None:
    with pytest.raises(ConfigError, match=r"ENGINE_DTYP: .*Did you mean ENGINE_DTYPE\?"):
        read_environment({"ENGINE_DTYP": "float32"}, SCHEMA)
    layer, ignored = read_environment({"ENGINE_ZZ_TOP": "1", "OTHER": "2"}, SCHEMA)
    assert layer.values == {}
    assert ignored == ["ENGINE_ZZ_TOP is ignored: no setting has that name"]


def test_variables_for_others_and_empty_ones_are_no_settings() -> None:
    environ = {"ENGINE_BLOCK_PLUGINS": "x", "ENGINE_CONFIG": "y", "ENGINE_DTYPE": ""}
    assert read_environment(environ, SCHEMA) == (Layer("environment", {}), [])


def test_the_variables_that_kubernetes_makes_for_a_service_named_engine_are_ignored() -> None:
    environ = {"ENGINE_PORT": "tcp://10.0.0.1:80", "ENGINE_SERVICE_HOST": "10.0.0.1"}
    layer, ignored = read_environment(environ, SCHEMA)
    assert layer.values == {}
    assert all("Kubernetes" in line for line in ignored)
    assert len(ignored) == 2


def test_statements_that_agree_are_one_and_others_are_named_both() -> None:
    def said(name: str, value: object, label: str) -> Statement:
        return Statement(name, value, label, label)

    layer = agree(
        "command line",
        [said("max_model_len", "32k", "--max-model-len"), said("max_model_len", 32000, "-x")],
        SCHEMA,
    )
    assert layer.values == {"max_model_len": "32k"}
    with pytest.raises(
        ConfigError, match=r"^--compilation-mode=a and -cc\.mode=b contradict each other; keep one$"
    ):
        agree(
            "command line",
            [
                said("compilation_config.mode", "a", "--compilation-mode"),
                said("compilation_config", {"mode": "b"}, "-cc"),
            ],
            SCHEMA,
        )


SHORT = {"compilation_config.mode": "a", "compilation_config.cudagraph_mode": "b"}


def test_a_secret_is_never_shown() -> None:
    class Secrets(BaseModel):
        key: int = Field(default=0, repr=False)

    schema = Schema.of(Secrets)
    with pytest.raises(ConfigError, match=r"^ENGINE_KEY: must be a valid integer$"):
        build(Secrets, [read_environment({"ENGINE_KEY": "hush"}, schema)[0]])
    statements = [Statement("key", text, label, label) for text, label in (("1", "a"), ("2", "b"))]
    with pytest.raises(ConfigError, match=r"^a and b contradict each other; keep one$"):
        agree("x", statements, schema)


def test_a_shortcut_stands_for_explicit_settings_from_any_source(tmp_path: Path) -> None:
    schema = Schema.of(EngineConfig, shortcuts={"plain_run": SHORT})
    path = tmp_path / "engine.yaml"
    path.write_text("plain-run: yes\n")
    flag = agree("command line", [Statement("plain_run", True, "--plain-run", "--x")], schema)
    variable, _ = read_environment({"ENGINE_PLAIN_RUN": "1"}, schema)
    for layer, origin in (
        (flag, "--x"),
        (variable, "ENGINE_PLAIN_RUN"),
        (read_file(path, schema), "engine.yaml"),
    ):
        assert merge([layer]).origins == dict.fromkeys(SHORT, origin)
        assert merge([layer]).config.compilation_config.cudagraph_mode == "b"
    off, _ = read_environment({"ENGINE_PLAIN_RUN": "false"}, schema)
    assert merge([off]) == Settings(EngineConfig())
    with pytest.raises(ConfigError, match="ENGINE_PLAIN_RUN=perhaps: must be true or false"):
        read_environment({"ENGINE_PLAIN_RUN": "perhaps"}, schema)


def test_a_shortcut_that_contradicts_a_setting_is_named_with_it() -> None:
    schema = Schema.of(EngineConfig, shortcuts={"plain_run": SHORT})
    with pytest.raises(
        ConfigError, match=r"^--plain: compilation_mode=a and --mode=z contradict each other"
    ):
        agree(
            "command line",
            [
                Statement("plain_run", True, "--plain", "--plain"),
                Statement("compilation_config.mode", "z", "--mode", "--mode"),
            ],
            schema,
        )


def test_a_configuration_object_knows_which_fields_it_was_given() -> None:
    config = EngineConfig(
        model="m",
        max_model_len=None,
        hf_overrides={"k": 1},
        compilation_config=CompilationConfig(backend="b", backend_options={"o": 2}),
    )
    assert as_settings(config).origins == {
        "model": "request",
        "hf_overrides.k": "request",
        "compilation_config.backend": "request",
        "compilation_config.backend_options.o": "request",
    }
    settings = Settings(config)
    assert as_settings(settings) is settings


def test_two_fields_with_one_flag_are_refused() -> None:
    with pytest.raises(ValueError, match="share the name"):
        Schema.of(EngineConfig, CompilationConfig)


def test_settings_need_no_torch() -> None:
    code = "import engine.settings_sources, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
