"""Transformers' module behind the engine's contract.

Shapes: T tokens of a step, N rows that need logits, H hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.initialization import no_init_weights
from transformers.modeling_outputs import BaseModelOutputWithPast

from engine.errors import ModelError
from engine.models import DERIVED, CausalLM, fill
from engine_model_transformers.conversion import converted
from engine_model_transformers.interface import SERVING
from engine_model_transformers.probe import attention_specs, check_tokens_stay_apart, refuse
from engine_model_transformers.rope import fix_frequencies


class _Given(nn.Module):
    """Stands where the decoder was, and returns the hidden states that it is given.

    What remains around it is the model's own head: projection, scaling, soft cap.
    """

    @property
    def decoder(self) -> _Given:
        """Some heads call the decoder inside the decoder (OPT)."""
        return self

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Any:
        """Return the given hidden [1, N, H]."""
        return _Output(last_hidden_state=inputs_embeds)


class _Output(BaseModelOutputWithPast):
    """Has every optional output that a head may pass on; all are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class TransformersCausalLM(CausalLM):
    """A causal language model of transformers over flat tokens, as one batch row."""

    def __init__(
        self, config: PretrainedConfig, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        # A copy: building writes the attention implementation into the configuration.
        self._config = config
        config = copy.deepcopy(config)
        model = _make(config, dtype, device)
        self._targets = dict(_checkpoint_tensors(model))
        self._ignored = (*DERIVED, *(model._keys_to_ignore_on_load_unexpected or ()))  # noqa: SLF001 - transformers keeps no public list of tensors that a checkpoint may have for nothing
        # Files may name tensors otherwise than the module does; transformers knows the pairs.
        transforms = get_model_conversion_mapping(model)
        self._renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
        self._prefix, self.body = _take_decoder(model)
        self.head = model
        fix_frequencies(self.body, config)
        self.attention_specs = attention_specs(self.body)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden [T, H], after the final norm, from ids [T] and positions [T]."""
        output = self.body(
            input_ids=input_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
        )
        hidden: torch.Tensor = output[0]
        return hidden.squeeze(0)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [N, V] from hidden [N, H], by the model's own head."""
        logits: torch.Tensor = self.head(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits
        return logits.squeeze(0)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy a checkpoint's tensors into the parameters.

        Raises:
            ModelError: a tensor is missing, unknown or of the wrong shape; names it. Or the
                model's tokens meet outside attention.
        """
        fill(self._targets, self._named(weights))
        check_tokens_stay_apart(self.body)

    def _named(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield tensors under the names of this model.

        A checkpoint without head lacks the decoder's prefix. What has no place as it is goes
        through transformers' conversions at the end.
        """
        rest: dict[str, torch.Tensor] = {}
        filled: set[str] = set()
        for name, tensor in weights:
            prefixed = f"{self._prefix}.{name}"
            ours = prefixed if name not in self._targets and prefixed in self._targets else name
            if ours in self._targets:
                filled.add(ours)
                yield ours, tensor
            elif not any(re.search(pattern, name) for pattern in self._ignored):
                rest[name] = tensor
        if rest:
            known = {name: self._targets[name] for name in filled}
            yield from converted(type(self.head), self._config, known, rest)


def _make(config: PretrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    if config.is_encoder_decoder:
        raise ModelError(
            f"{type(config).__name__}: encoder-decoder models aren't supported, "
            "only decoders (causal language models)."
        )
    try:
        with torch.device(device), no_init_weights():
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=SERVING
            )
    except (ValueError, KeyError, ImportError) as error:
        raise ModelError(
            f"{type(config).__name__}: transformers can't build its model with an attention "
            f"implementation of ours ({type(error).__name__}: {error})."
        ) from error
    model.tie_weights()
    model.eval().requires_grad_(requires_grad=False)
    return model  # type: ignore[no-any-return]  # transformers' factory is untyped


def _take_decoder(model: PreTrainedModel) -> tuple[str, PreTrainedModel]:
    """Take the decoder out of the model; what is left is the head. Return its name, and it."""
    for name, child in model.named_children():
        if isinstance(child, PreTrainedModel):
            setattr(model, name, _Given())
            return name, child
    raise refuse(model, "it has no decoder apart from its head")


def _checkpoint_tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a checkpoint holds; tied parameters come under each of their names."""
    persistent = model.state_dict(keep_vars=True)
    yield from ((name, tensor) for name, tensor in persistent.items() if tensor.numel())
