"""Dummy weights: repeatable, finite at any depth, and never chosen unasked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from engine.errors import ModelError
from engine.events import Event, EventBus, PhaseAdvanced, PhaseFinished, PhaseStarted
from engine.registry import Registry
from engine_weights_dummy.loader import DummyWeights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attention_bias=True,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(tmp_path)
    return tmp_path


def uninitialised(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    model: torch.nn.Module = LlamaForCausalLM(AutoConfig.from_pretrained(folder))
    model.to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    return model


def fill(model: Any, folder: Path, seed: int) -> list[Event]:
    events: list[Event] = []
    bus = EventBus()
    bus.subscribe(events.append)
    loader = DummyWeights()
    loader.load(model, folder, loader.config(folder), bus, seed)
    return events


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_activation_stays_finite_in_a_deep_model(folder: Path, dtype: torch.dtype) -> None:
    model = uninitialised(folder, dtype)
    fill(model, folder, seed=torch.seed())
    with torch.inference_mode():
        logits = model(torch.randint(128, (2, 32))).logits
    assert logits.dtype == dtype
    assert torch.isfinite(logits).all()
    assert logits.float().std() > 0


def test_a_seed_gives_the_same_weights_and_another_seed_gives_others(folder: Path) -> None:
    seed = torch.seed()
    states = []
    for each in (seed, seed, seed + 1):
        model = uninitialised(folder, torch.bfloat16)
        fill(model, folder, each)
        states.append(model.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert not any(torch.equal(value, states[2][name]) for name, value in states[0].items())


def test_the_global_random_state_is_left_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    model = uninitialised(folder, torch.float32)
    torch.set_rng_state(before)
    fill(model, folder, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_gains_are_near_one_and_matrices_follow_the_configuration(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "initializer_range": 0.005}))
    model = uninitialised(folder, torch.float32)
    fill(model, folder, seed=3)
    state = model.state_dict()
    assert state["model.norm.weight"].mean() == pytest.approx(1.0, abs=0.05)
    assert state["model.layers.3.mlp.up_proj.weight"].std() == pytest.approx(0.005, rel=0.1)
    assert state["model.layers.3.self_attn.q_proj.bias"].abs().max() < 0.05


def test_parameters_are_filled_in_place_and_each_is_reported(folder: Path) -> None:
    model = uninitialised(folder, torch.float32)
    places = {name: p.data_ptr() for name, p in model.named_parameters()}
    events = fill(model, folder, seed=0)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == places
    assert events[0] == PhaseStarted("load", len(places))
    assert events[1:-1] == [
        PhaseAdvanced("load", done, len(places), name) for done, name in enumerate(places, 1)
    ]
    assert isinstance(events[-1], PhaseFinished)


def test_a_model_of_the_engine_is_filled_too(folder: Path) -> None:
    config = DummyWeights().config(folder)
    plugin = Registry().load("models", "llama")
    model = plugin().build(config, dtype=torch.bfloat16, device=torch.device("cpu"))
    fill(model, folder, seed=5)
    assert all(torch.isfinite(p).all() and p.abs().max() > 0 for p in model.parameters())


def test_it_is_never_chosen_automatically(folder: Path) -> None:
    assert Registry().load("weights", "dummy") is DummyWeights
    assert not DummyWeights.handles(folder)


def test_a_configuration_alone_is_enough_and_brings_no_tokenizer(folder: Path) -> None:
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    assert DummyWeights().tokenizer(folder) is None


def test_a_file_is_told_what_is_needed(folder: Path) -> None:
    file = folder / "model.gguf"
    file.touch()
    with pytest.raises(ModelError, match=r"needs a folder with a config\.json"):
        DummyWeights().config(file)


def test_a_folder_without_a_configuration_names_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        DummyWeights().config(tmp_path)


def test_there_is_no_checkpoint_to_stream(folder: Path) -> None:
    loader = DummyWeights()
    with pytest.raises(ModelError, match="come from no checkpoint"):
        loader.tensors(folder, loader.config(folder))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_parameters_on_a_gpu_are_filled_there_and_repeatably(folder: Path) -> None:
    states = []
    for _ in range(2):
        model = uninitialised(folder, torch.bfloat16).to("cuda")
        fill(model, folder, seed=11)
        states.append(model.state_dict())
    assert all(value.is_cuda for value in states[0].values())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
