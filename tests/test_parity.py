"""Greedy tokens of the whole engine equal transformers' own `generate`, exactly, in float32.

Whatever the loop does on the way: other requests beside, chunks, prefix hits, preemption.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from engine import LLM, SamplingParams
from engine.testing.reference import random_reference, reference_tokens

VOCAB = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "llama3": LlamaConfig(**SHAPE, tie_word_embeddings=True, rope_parameters=LLAMA3),
    "mistral": MistralConfig(**SHAPE, sliding_window=9),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
    "gpt-neox": GPTNeoXConfig(**{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}),
    "gemma2": Gemma2Config(**SHAPE, head_dim=16, query_pre_attn_scalar=24, sliding_window=9),
    "phi3": Phi3Config(**SHAPE),
}
FAST = ("llama", "qwen3", "gemma2")
"""Families for the tests that vary what the loop does rather than the model."""


def prompts_for(seed: int, count: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 40))] for _ in range(count)]


@pytest.fixture(scope="module")
def references() -> dict[str, PreTrainedModel]:
    return {}


@pytest.fixture
def family(
    request: pytest.FixtureRequest,
    references: dict[str, PreTrainedModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[PreTrainedModel, Path]:
    """A random model of a family, and the folder that holds it."""
    name = request.param
    if name not in references:
        references[name] = random_reference(FAMILIES[name], seed=1)
    folder = tmp_path_factory.getbasetemp() / f"parity-{name}"
    if not folder.exists():
        references[name].save_pretrained(folder)
    return references[name], folder


def run(folder: Path, prompts: list[list[int]], new: int = 12, **settings: Any) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    options: dict[str, Any] = {"skip_tokenizer": True, "num_kv_blocks": 64, **settings}
    with LLM(str(folder), optimization_level=0, device="cpu", **options) as llm:
        results = llm.generate(prompts, params, progress=False)
        assert [r.prompt_token_ids for r in results] == prompts
        return [r.outputs[0].token_ids for r in results]


def expected(model: PreTrainedModel, prompts: list[list[int]], new: int = 12) -> list[list[int]]:
    return [reference_tokens(model, prompt, new) for prompt in prompts]


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
def test_a_batch_of_prompts(family: tuple[PreTrainedModel, Path]) -> None:
    model, folder = family
    prompts = prompts_for(seed=1)
    assert run(folder, prompts) == expected(model, prompts)


@pytest.mark.parametrize("family", FAST, indirect=True)
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 1, "max_num_seqs": 1},
        {"block_size": 1, "num_kv_blocks": 400},
        {"block_size": 5},
        {"enable_prefix_caching": False},
        {"model_impl": "transformers"},
    ],
    ids=str,
)
def test_whatever_the_loop_does_on_the_way(
    family: tuple[PreTrainedModel, Path], settings: dict[str, Any]
) -> None:
    model, folder = family
    prompts = prompts_for(seed=2, count=4)
    assert run(folder, prompts, new=8, **settings) == expected(model, prompts, new=8)


@pytest.mark.parametrize("family", ["llama"], indirect=True)
def test_preemption_recomputes_the_same_tokens(family: tuple[PreTrainedModel, Path]) -> None:
    model, folder = family
    prompts = prompts_for(seed=3, count=6)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(
        str(folder), optimization_level=0, skip_tokenizer=True, block_size=4, num_kv_blocks=20
    ) as llm:
        results = llm.generate(prompts, params, progress=False)
        assert llm.core.stats().preemptions >= 2
        assert llm.core.stats().num_free_blocks == 19
    assert [r.outputs[0].token_ids for r in results] == expected(model, prompts, new=24)


@pytest.mark.parametrize("family", ["llama"], indirect=True)
def test_a_prefix_hit_gives_the_tokens_of_a_miss(family: tuple[PreTrainedModel, Path]) -> None:
    model, folder = family
    shared = [5 + i % 60 for i in range(35)]
    prompts = [[*shared, 7], [*shared, 8, 9], shared]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(str(folder), optimization_level=0, skip_tokenizer=True, num_kv_blocks=64) as llm:
        first = llm.generate(prompts, params, progress=False)
        again = llm.generate(prompts, params, progress=False)
        asked = llm.generate(
            prompts,
            SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=0),
            progress=False,
        )
        assert llm.core.stats().prefix_hits > 0
    assert all(result.num_cached_tokens >= 32 for result in again)
    wanted = expected(model, prompts, new=6)
    for results in (first, again, asked):
        assert [r.outputs[0].token_ids for r in results] == wanted
    for result, prompt in zip(asked, prompts, strict=True):
        assert result.prompt_logprobs is not None
        assert len(result.prompt_logprobs) == len(prompt)
        assert result.prompt_logprobs[0] is None


@pytest.mark.slow
def test_the_demo_model_speaks_as_transformers_does() -> None:
    from engine.errors import ModelError
    from engine.runtime.model_source import locate_model

    try:
        locate_model(None)
    except ModelError as error:
        pytest.skip(str(error))
    questions = ["Hello", "What is the capital of France?", "List three colours:"]
    with LLM(optimization_level=0, device="cpu", dtype="float32") as llm:
        checkpoint = llm.core.checkpoint
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_config(
            checkpoint.config, dtype=torch.float32, attn_implementation="eager"
        )
        state = dict(checkpoint.loader.tensors(checkpoint.path, checkpoint.config))
        model.load_state_dict(state, strict=False)
        model.tie_weights()
        model.eval()
        prompts = [list(llm.tokenizer(text).input_ids) for text in questions]
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        results = llm.generate(prompts, params, progress=False)
        answer = llm.chat(
            [{"role": "user", "content": questions[1]}],
            SamplingParams(temperature=0, max_tokens=20),
            progress=False,
        )[0].outputs[0]
    assert [r.outputs[0].token_ids for r in results] == expected(model, prompts, new=24)
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
