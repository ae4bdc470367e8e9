"""Finds out what a model's attention layers ask for, by watching them run once."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from engine.attention import AttentionSpec
from engine.errors import ModelError
from engine_model_transformers.interface import RECORD, SERVING, WATCHING, Call, Seen

_UNDERSTOOD = frozenset({"scaling", "softcap", "sliding_window", "dropout"})
"""Options that the specification carries, or that mean nothing at inference."""
_HARMLESS_TENSORS = frozenset({"position_ids", "cache_position", "position_embeddings"})

_TOKENS = 3


def refuse(body: PreTrainedModel, reason: str) -> ModelError:
    """Make the error for a model that can't be served."""
    return ModelError(f"{type(body).__name__} can't be served by transformers' modules: {reason}.")


def attention_specs(body: PreTrainedModel) -> tuple[AttentionSpec, ...]:
    """Return the specification of each attention layer.

    Args:
        body: the decoder without its head; its weights need not be loaded.

    Raises:
        ModelError: the model needs something that the engine's attention doesn't have, or keeps
            state outside attention.
    """
    if "position_ids" not in inspect.signature(body.forward).parameters:
        raise refuse(
            body,
            "it takes no position_ids, so requests can't share a batch "
            "(its positions come from ALiBi, or from a recurrent state)",
        )
    calls, _ = watch(body, torch.zeros(_TOKENS, dtype=torch.long))
    layers = [getattr(call.module, "layer_idx", None) for call in calls]
    expected = int(body.config.get_text_config().num_hidden_layers)
    if not calls:
        raise refuse(body, "no layer uses transformers' attention interface")
    if layers != list(range(expected)):
        raise refuse(
            body,
            f"its attention layers are {layers}, not 0 to {expected - 1} once each; "
            "the others keep state that isn't a KV cache, or share one",
        )
    return tuple(_spec(body, call) for call in calls)


def check_tokens_stay_apart(body: PreTrainedModel) -> None:
    """Check, with weights loaded, that tokens meet in attention only.

    A convolution or a recurrence beside attention would carry one request's tokens into
    another's: when each token attends to itself alone, no token may depend on its neighbour.

    Raises:
        ModelError: one does.
    """
    one, other = torch.tensor([1, 0, 0]), torch.tensor([0, 0, 0])
    _, hidden = watch(body, one)
    _, again = watch(body, other)
    scale = hidden.abs().max() + 1e-6
    if bool(((hidden[1:] - again[1:]).abs().max() > 0.05 * scale).item()):
        raise refuse(body, "its tokens meet outside attention (a convolution or a recurrence)")


def watch(body: PreTrainedModel, ids: torch.Tensor) -> tuple[list[Call], torch.Tensor]:
    """Run a few tokens with every token attending to itself alone.

    Returns:
        the calls of the attention layers in order, and hidden [T, H] in float32.
    """
    calls: list[Call] = []
    modules = list(body.modules())
    for module in modules:
        setattr(module, RECORD, calls)
    ids = ids.to(next(body.parameters()).device).unsqueeze(0)
    positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
    body.set_attn_implementation(WATCHING)
    try:
        with torch.inference_mode():
            output = body(input_ids=ids, position_ids=positions, use_cache=False)
        return calls, output[0][0].float()
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise refuse(body, f"a trial run failed with {type(error).__name__}: {error}") from error
    finally:
        body.set_attn_implementation(SERVING)
        for module in modules:
            delattr(module, RECORD)


def _spec(body: PreTrainedModel, call: Call) -> AttentionSpec:
    _, heads, tokens, size = call.query
    _, kv_heads, keys, _ = call.key
    if call.value[-1] != size or call.key[-1] != size:
        raise refuse(
            body,
            f"its values have head size {call.value[-1]}, its keys {call.key[-1]} and its queries "
            f"{size}; the KV cache needs one head size",
        )
    if keys != tokens or heads % kv_heads:
        raise refuse(body, f"its attention has {heads} query and {kv_heads} key heads over {keys}")
    _check_options(body, call)
    scale = call.options.get("scaling")
    cap = call.options.get("softcap")
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=size,
        scale=size**-0.5 if scale is None else float(scale),
        sliding_window=_window(body, call),
        soft_cap=None if cap is None else float(cap),
    )


def _check_options(body: PreTrainedModel, call: Call) -> None:
    """Refuse options that change the result and that the engine doesn't know."""
    for name, value in call.options.items():
        is_tensor = isinstance(value, torch.Tensor) and name not in _HARMLESS_TENSORS
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in _UNDERSTOOD and (is_tensor or is_number):
            raise refuse(body, f"its attention asks for {name}, which the engine doesn't have")


def _window(body: PreTrainedModel, call: Call) -> int | None:
    mask: Any = call.mask
    if mask is None:
        # No mask was made: transformers' own functions then go by the module's word.
        if not getattr(call.module, "is_causal", False):
            raise refuse(body, "its attention isn't causal")
        window = call.options.get("sliding_window")
        return None if window is None else int(window)
    if not isinstance(mask, Seen) or not hasattr(mask, "odd"):
        raise refuse(body, "it makes an attention mask of its own")
    if mask.odd:
        raise refuse(body, f"its attention mask is {mask.odd}")
    return mask.window
