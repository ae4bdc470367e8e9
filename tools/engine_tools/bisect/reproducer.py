"""Writes the smallest failing case as a script that anyone can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, StrictUndefined

from engine import Settings
from engine.plugin_files import VARIABLE, files_in_force
from engine_tools.verify import Batch, Comparison, Divergence, Verification

_SCRIPT = '''\
"""{{ culprit }} answers otherwise than the model's own Python.

{{ place or "Where in the model is not known." }}

Written by `engine bisect` with modular-engine {{ version }}. Exits with 1 while the fault is there.
"""

import os
import sys

{% if files %}os.environ["{{ variable }}"] = os.pathsep.join({{ files }})

{% endif %}from engine import LLM, CompilationConfig, SamplingParams

SETTINGS = {{ settings }}
PROMPTS = {{ prompts }}
NEW_TOKENS = {{ new }}
BOUND = {{ bound }}
"""Largest difference of a log-probability that rounding explains."""


def answers(**compilation):
    """Return the tokens and all log-probabilities, for each prompt."""
    params = [
        SamplingParams(
            temperature=0, max_tokens=new, ignore_eos=True, logprobs=0, prompt_logprobs=0
        )
        for new in NEW_TOKENS
    ]
    with LLM(compilation_config=CompilationConfig(**compilation), **SETTINGS) as llm:
        results = llm.generate(PROMPTS, params, progress=False)
    for result in results:
        if result.error:
            print("failed:", result.error)
    return [(result.outputs[0].token_ids, values(result)) for result in results]


def values(result):
    positions = [*(result.prompt_logprobs or []), *(result.outputs[0].logprobs or [])]
    return [position[0].logprob for position in positions if position]


expected = answers(mode="none", cudagraph_mode="none", backend="eager")
found = answers(**{{ compilation }})
wrong = False
for (tokens, probabilities), (others, seen) in zip(expected, found):
    gap = max((abs(a - b) for a, b in zip(probabilities, seen)), default=0.0)
    print(f"expected {tokens}, found {others}; log-probabilities differ by up to {gap:.3g}")
    # Not "gap > BOUND": NaN is no answer either.
    wrong = wrong or tokens != others or not gap <= BOUND
print("wrong" if wrong else "right")
sys.exit(wrong)
'''


def smallest_batch(
    verification: Verification, settings: Settings, divergence: Divergence
) -> tuple[Batch, Comparison]:
    """Return the smallest batch found that is still wrong, and how.

    Tried: the end of the one prompt that went wrong, ever longer, then the whole of its batch.
    """
    whole = next(b for b in verification.batches if b.name == divergence.batch)
    prompt = divergence.token_ids
    lengths = [
        n for n in (2**power for power in range(len(prompt).bit_length())) if n < len(prompt)
    ]
    tried = [
        *(Batch(f"last {n}", (prompt[-n:],), (2,)) for n in lengths),
        Batch("one prompt", (prompt,), (2,)),
        Batch("whole", whole.prompts, whole.new),
    ]
    compared = verification.compare_on(settings, tried)
    for batch, comparison in zip(tried, compared, strict=True):
        if comparison.divergences:
            return batch, comparison
    return tried[-1], compared[-1]


def reproducer(culprit: str, place: str, settings: Settings, batch: Batch, bound: float) -> str:
    """Return the source of a script that shows the fault.

    Args:
        culprit: what is wrong.
        place: where in the model.
        settings: the smallest combination that is wrong, with the verification's limits.
        batch: the prompts.
        bound: largest difference of a log-probability that is allowed.
    """
    config = settings.config.model_dump(mode="json", exclude_defaults=True)
    compilation = config.pop("compilation_config", {})
    return (
        Environment(undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - it makes Python, not HTML
        .from_string(_SCRIPT)
        .render(
            culprit=culprit[:1].upper() + culprit[1:],
            place=place,
            version=version("modular-engine"),
            files=[str(path) for path in files_in_force()],
            variable=VARIABLE,
            settings=_literal(config),
            compilation=_literal(compilation),
            prompts=_literal([list(prompt) for prompt in batch.prompts]),
            new=_literal(list(batch.new)),
            bound=bound,
        )
    )


def _literal(value: Mapping[str, Any] | Sequence[Any]) -> str:
    return repr(value)
