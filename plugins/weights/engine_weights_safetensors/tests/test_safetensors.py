"""The safetensors loader: what is read back, in which way, and what is said when it can't be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engine.errors import ModelError
from engine.events import Event, EventBus, PhaseAdvanced, PhaseFinished, PhaseStarted
from engine.registry import Registry
from engine_weights_safetensors.loader import SafetensorsWeights

INDEX = "model.safetensors.index.json"


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.seed()
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        eos_token_id=[2, 5],
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config)
    torch.nn.Module.to(model, torch.bfloat16)
    return model


@pytest.fixture
def single(model: LlamaForCausalLM, tmp_path: Path) -> Path:
    folder = tmp_path / "single"
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def sharded(model: LlamaForCausalLM, tmp_path: Path) -> Path:
    folder = tmp_path / "sharded"
    model.save_pretrained(folder, max_shard_size="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def read(folder: Path) -> dict[str, torch.Tensor]:
    loader = SafetensorsWeights()
    assert loader.handles(folder)
    pairs = list(loader.tensors(folder, loader.config(folder)))
    assert len(pairs) == len(dict(pairs)) == loader.num_tensors(folder)
    return dict(pairs)


def assert_equal(tensors: dict[str, torch.Tensor], model: LlamaForCausalLM) -> None:
    expected = model.state_dict()
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, expected[name]), name


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read(folder)
    text = str(caught.value)
    assert str(folder) in text
    assert "\n" not in text
    return text


def test_the_loader_is_found_by_its_name() -> None:
    assert Registry().load("weights", "safetensors") is SafetensorsWeights


def test_one_file_is_read_back_equal(single: Path, model: LlamaForCausalLM) -> None:
    assert_equal(read(single), model)


def test_shards_are_read_back_equal(sharded: Path, model: LlamaForCausalLM) -> None:
    assert_equal(read(sharded), model)


def test_a_full_set_of_shards_needs_no_index(sharded: Path, model: LlamaForCausalLM) -> None:
    (sharded / INDEX).unlink()
    assert_equal(read(sharded), model)


def test_one_file_of_any_name_is_the_checkpoint(single: Path, model: LlamaForCausalLM) -> None:
    (single / "model.safetensors").rename(single / "weights.safetensors")
    assert_equal(read(single), model)


def test_a_single_file_wins_over_leftover_shards(
    single: Path, sharded: Path, model: LlamaForCausalLM
) -> None:
    for file in sharded.glob("model*"):
        shutil.copy(file, single)
    next(single.glob("model-*-of-*.safetensors")).unlink()
    assert_equal(read(single), model)


def test_tensors_are_views_of_the_file_and_not_copies(tmp_path: Path, single: Path) -> None:
    size = 64 * 2**20
    (single / "model.safetensors").unlink()
    save_file({"big": torch.zeros(size, dtype=torch.uint8)}, single / "model.safetensors")

    def anonymous_memory() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(s.split()[1]) for s in status.splitlines() if s.startswith("RssAnon"))

    loader = SafetensorsWeights()
    before = anonymous_memory()
    for _, tensor in loader.tensors(single, None):
        assert int(tensor.sum()) == 0
        assert (anonymous_memory() - before) * 1024 < size / 4


def test_tensors_come_in_the_order_of_the_file(single: Path) -> None:
    names = list(read(single))
    offsets = {name: i for i, name in enumerate(_header_order(single / "model.safetensors"))}
    assert names == sorted(names, key=offsets.__getitem__)


def _header_order(file: Path) -> list[str]:
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    return sorted(header, key=lambda name: header[name]["data_offsets"][0])


def test_loading_reports_each_tensor_and_the_total(single: Path, model: LlamaForCausalLM) -> None:
    class Collecting:
        """Stands for the engine's model: it only has to consume what it is given."""

        def load_weights(self, weights: Any) -> None:
            self.names = [name for name, _ in weights]

    events: list[Event] = []
    bus = EventBus()
    bus.subscribe(events.append)
    loader, target = SafetensorsWeights(), Collecting()
    loader.load(target, single, loader.config(single), bus, seed=0)  # type: ignore[arg-type]  # see Collecting
    total = len(model.state_dict())
    assert events[0] == PhaseStarted("load", total)
    assert events[1:-1] == [
        PhaseAdvanced("load", done, total, name) for done, name in enumerate(target.names, 1)
    ]
    assert isinstance(events[-1], PhaseFinished)


# What is wrong with a folder, and the sentence that says so.


def test_a_missing_shard_is_named(sharded: Path) -> None:
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    assert f"{gone}: no such file, but it is named by {INDEX}" in refusal(sharded)


def test_a_missing_shard_without_an_index_is_named(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    shards = sorted(sharded.glob("*.safetensors"))
    shards[0].unlink()
    shards[2].unlink()
    assert f"{shards[0]}: no such file and 1 more, but it is one of" in refusal(sharded)


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_named(single: Path, keep: float) -> None:
    file = single / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    assert f"{file}: is truncated or no safetensors file" in refusal(single)


def test_a_truncated_shard_is_refused_before_any_tensor_is_yielded(sharded: Path) -> None:
    last = sorted(sharded.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1])
    loader = SafetensorsWeights()
    with pytest.raises(ModelError, match="is truncated"):
        next(loader.tensors(sharded, loader.config(sharded)))


@pytest.mark.parametrize(
    "content", [b"\xff" * 64, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"]
)
def test_a_file_of_something_else_is_named(single: Path, content: bytes) -> None:
    (single / "model.safetensors").write_bytes(content)
    assert "model.safetensors: is truncated or no safetensors file" in refusal(single)


def test_a_tensor_that_its_shard_lacks_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    tensors = load_file(shard)
    name = min(tensors)
    tensors["other"] = tensors.pop(name)
    save_file(tensors, shard)
    assert f"{shard}: lacks the tensor '{name}'" in refusal(sharded)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds a list, not a JSON object"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "which is no file name"),
        ('{"weight_map": {"a": 1}}', "which is no file name"),
    ],
)
def test_a_bad_index_is_named(sharded: Path, index: str, said: str) -> None:
    (sharded / INDEX).write_text(index)
    text = refusal(sharded)
    assert INDEX in text
    assert said in text


def test_several_files_without_an_index_are_unclear(single: Path) -> None:
    shutil.copy(single / "model.safetensors", single / "a.safetensors")
    (single / "model.safetensors").rename(single / "b.safetensors")
    assert "several safetensors files (a.safetensors, b.safetensors)" in refusal(single)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_pickled_weights_are_refused_with_the_way_to_convert_them(single: Path, name: str) -> None:
    (single / "model.safetensors").rename(single / name)
    text = refusal(single)
    assert name in text
    assert "save_pretrained" in text


def test_a_folder_without_weights_says_so(single: Path) -> None:
    (single / "model.safetensors").unlink()
    assert "holds no safetensors files" in refusal(single)


def config_with(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda config: {**config, **changes}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (config_with(model_type="llamaaa"), "model_type='llamaaa' is no architecture"),
        (config_with(model_type=None), "names no model_type"),
        (config_with(hidden_size="wide"), "is no valid llama configuration"),
        (config_with(hidden_size=33), "is no valid llama configuration"),
        (
            config_with(quantization_config={"quant_method": "fp8"}),
            "its weights are quantised (fp8), which isn't supported",
        ),
    ],
)
def test_a_bad_configuration_is_one_sentence(
    single: Path, edit: Callable[[dict[str, Any]], dict[str, Any]], said: str
) -> None:
    file = single / "config.json"
    file.write_text(json.dumps(edit(json.loads(file.read_text()))))
    assert said in refusal(single)


@pytest.mark.parametrize("content", ["{", "", "\x00", "[1]", '"text"', b"\xff\xfe"])
def test_a_configuration_that_is_no_json_object_is_named(
    single: Path, content: str | bytes
) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (single / "config.json").write_bytes(data)
    assert f"{single / 'config.json'}: " in refusal(single)


def test_code_in_a_model_folder_is_never_run(single: Path) -> None:
    file = single / "config.json"
    config = json.loads(file.read_text())
    auto_map = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (single / "evil.py").write_text("raise SystemExit('ran')")
    file.write_text(json.dumps({**config, "model_type": "evil", "auto_map": auto_map}))
    assert "code that a model folder brings is never run" in refusal(single)
    file.write_text(json.dumps({**config, "auto_map": auto_map}))
    assert type(SafetensorsWeights().config(single)) is LlamaConfig


def test_a_file_is_told_to_pass_its_folder(single: Path) -> None:
    loader = SafetensorsWeights()
    assert not loader.handles(single / "model.safetensors")
    with pytest.raises(ModelError, match="pass the folder that holds the weights"):
        loader.config(single / "model.safetensors")


# Tokenizer and end tokens.


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<end>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", chat_template="{{ messages[0].content }}!"
    )


def test_the_tokenizer_of_the_folder_comes_with_its_chat_template(
    single: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenizer.save_pretrained(single)
    read_back = SafetensorsWeights().tokenizer(single)
    text = "¿Qué? 日本 🦜"
    assert read_back(text).input_ids == tokenizer(text).input_ids
    assert read_back.decode(read_back(text).input_ids) == text
    messages = [{"role": "user", "content": "hi"}]
    assert read_back.apply_chat_template(messages, tokenize=False) == "hi!"


def test_a_folder_without_a_tokenizer_has_none(single: Path) -> None:
    assert SafetensorsWeights().tokenizer(single) is None


@pytest.mark.parametrize("content", ["{", "{}", '{"version": "1.0", "model": {"type": "X"}}'])
def test_an_invalid_tokenizer_is_one_sentence(
    single: Path, tokenizer: PreTrainedTokenizerFast, content: str
) -> None:
    tokenizer.save_pretrained(single)
    (single / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="its tokenizer cannot be read") as caught:
        SafetensorsWeights().tokenizer(single)
    assert "--tokenizer" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_end_tokens_are_those_of_config_generation_config_and_tokenizer(
    single: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    loader = SafetensorsWeights()
    config = loader.config(single)
    (single / "generation_config.json").unlink()
    assert loader.end_token_ids(single, config, None) == [2, 5]
    (single / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert loader.end_token_ids(single, config, None) == [2, 5, 7]
    assert loader.end_token_ids(single, config, tokenizer) == [0, 2, 5, 7]
    (single / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert loader.end_token_ids(single, config, None) == [2, 5, 9]
    (single / "generation_config.json").write_text("{}")
    config.eos_token_id = None
    assert loader.end_token_ids(single, config, None) == []


def test_an_invalid_generation_configuration_is_named(single: Path) -> None:
    loader = SafetensorsWeights()
    (single / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json: is not valid JSON"):
        loader.end_token_ids(single, loader.config(single), None)
