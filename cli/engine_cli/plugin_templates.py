"""What `engine plugins new` writes: one working plugin for each kind."""

from __future__ import annotations

from textwrap import dedent
from typing import NamedTuple


class Template(NamedTuple):
    """One kind's plugin.

    Attributes:
        source: of the module with the class `Plugin`, or what the hook returns.
        suite: the class of the conformance kit; empty where there is none.
        returns: what the hook returns, imported from that module.
        try_it: how it is used on the command line.
        more: what the test class has besides the name.
    """

    source: str
    suite: str
    try_it: str
    returns: str = "Plugin"
    more: str = ""


TEMPLATES: dict[str, Template] = {
    "compile_modes": Template(
        '''
        """How the model's Python becomes a callable."""

        from engine.strategies import CompiledModel, CompileJob, CompileReport, CompileStrategy


        class Plugin(CompileStrategy):
            """Runs the model as it is: put your compiler where `job.model` is returned."""

            NAME = "{name}"
            SUMMARY = "run the model's own Python; a beginning"
            USES_BACKEND = False

            def compile(self, job: CompileJob) -> CompiledModel:
                """Make the callable; all that serving needs is compiled before this returns."""
                return CompiledModel(call=job.model, report=CompileReport(), watchable=True)
        ''',
        "CompileStrategyConformance",
        "engine serve --compilation-mode {name}",
    ),
    "cudagraph_modes": Template(
        '''
        """Which batches are recorded, and how."""

        from engine.batch import BatchShape
        from engine.facts import GraphSupport
        from engine.recording import RecordingStrategy, Replay
        from engine.strategies import GraphJob, ModelInputs


        class Plugin(RecordingStrategy):
            """Records decode steps as one graph each; the base brings dispatch and capture."""

            NAME = "{name}"
            SUMMARY = "replay decode steps from one graph each; a beginning"
            MIN_SUPPORT = GraphSupport.UNIFORM_DECODE
            KINDS = ("{name}",)

            def plan(self, job: GraphJob) -> tuple[BatchShape, ...]:
                """Plan the sizes that decode can have, the largest first."""
                sizes = [size for size in job.sizes if size <= job.max_num_seqs]
                return tuple(BatchShape.decode(size) for size in sorted(sizes, reverse=True))

            def record(self, inputs: ModelInputs) -> Replay:
                """Record one pass."""
                return self.record_whole(inputs)
        ''',
        "GraphStrategyConformance",
        "engine serve --cudagraph-mode {name}",
    ),
    "backends": Template(
        '''
        """What turns an FX graph into a callable."""

        from collections.abc import Callable, Sequence
        from typing import Any

        from torch import fx

        from engine.strategies import Backend


        class Plugin(Backend):
            """Runs graphs as they are: compile `graph` and return what you made instead."""

            NAME = "{name}"
            SUMMARY = "run the traced graph operator by operator; a beginning"

            def compile(
                self, graph: fx.GraphModule, example_inputs: Sequence[Any], *, dynamic: bool
            ) -> Callable[..., Any]:
                """Compile one graph; keep symbolic sizes symbolic when `dynamic`."""
                return graph.forward
        ''',
        "BackendConformance",
        "engine serve --compilation-mode vllm_compile --backend {name}",
    ),
    "passes": Template(
        '''
        """A change of the traced graph."""

        import operator

        import torch
        from torch import fx

        from engine.strategies import Pass


        class Plugin(Pass):
            """Turns `x + x` into `x * 2`: match what you want to replace."""

            NAME = "{name}"
            SUMMARY = "turn x + x into x * 2; a beginning"
            STAGE = "graph"

            def run(self, graph: fx.GraphModule) -> int:
                """Change the graph in place and say how often."""
                fired = 0
                for node in list(graph.graph.nodes):
                    sums = node.op == "call_function" and node.target in (operator.add, torch.add)
                    if not sums or len(node.args) != 2 or node.args[0] is not node.args[1]:
                        continue
                    with graph.graph.inserting_before(node):
                        doubled = graph.graph.call_function(operator.mul, (node.args[0], 2))
                    doubled.meta.update(node.meta)
                    node.replace_all_uses_with(doubled)
                    graph.graph.erase_node(node)
                    fired += 1
                return fired
        ''',
        "PassConformance",
        "engine serve --compilation-mode vllm_compile --passes +{name}",
        more="\n    @staticmethod\n    def example(x: Any) -> Any:\n        return x + x\n",
    ),
    "attention": Template(
        '''
        """Attention over the paged cache, request by request."""

        from typing import Any

        import torch

        from engine.attention import AttentionInputs, AttentionPlugin, AttentionSpec
        from engine.plugin import Numerics


        class Plugin(AttentionPlugin):
            """Plain and slow: put your kernel where `_attend` is called."""

            NAME = "{name}"
            SUMMARY = "paged attention in plain torch, one request after the other; a beginning"
            NUMERICS = Numerics.TOLERANCE

            def cache_shape(self, spec: AttentionSpec, blocks: int, size: int) -> tuple[int, ...]:
                """Return (keys and values, slots, K, D)."""
                return (2, blocks * size, spec.num_kv_heads, spec.head_size)

            def begin_step(self, inputs: AttentionInputs) -> AttentionInputs:
                """Prepare what all layers of a step share."""
                return inputs

            def forward(
                self,
                query: torch.Tensor,
                key: torch.Tensor,
                value: torch.Tensor,
                out: torch.Tensor,
                cache: torch.Tensor,
                spec: AttentionSpec,
                metadata: Any,
            ) -> None:
                """Store this step's keys and values, then attend causally."""
                out.zero_()
                live = metadata.slots >= 0
                cache[0, metadata.slots[live]] = key[live]
                cache[1, metadata.slots[live]] = value[live]
                size = metadata.block_size
                for row, length in enumerate(metadata.host_seq_lens.tolist()):
                    start, end = metadata.host_query_start[row : row + 2].tolist()
                    if not live[start:end].any():
                        continue
                    table = torch.from_numpy(metadata.host_block_tables[row]).to(query.device)
                    at = torch.arange(length, device=query.device)
                    slots = table[at // size].long() * size + at % size
                    keys, values = cache[0, slots], cache[1, slots]
                    out[start:end] = _attend(query[start:end], keys, values, spec)


        def _attend(
            query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: AttentionSpec
        ) -> torch.Tensor:
            """Attend from query [n, H, D], the end of a context of keys and values [S, K, D]."""
            group = spec.num_heads // spec.num_kv_heads
            keys, values = (t.float().repeat_interleave(group, 1) for t in (keys, values))
            scores = torch.einsum("nhd,shd->hns", query.float(), keys) * spec.scale
            if spec.soft_cap is not None:
                scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
            context = torch.arange(len(keys), device=query.device)
            at = context[-len(query) :, None]
            hidden = context > at
            if spec.sliding_window is not None:
                hidden |= context <= at - spec.sliding_window
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            return torch.einsum("hns,shd->nhd", weights, values).to(query.dtype)
        ''',
        "AttentionConformance",
        "engine serve --attention {name}",
    ),
    "capture_sizes": Template(
        '''
        """Which token counts are recorded when the user names none."""

        from collections.abc import Mapping, Sequence

        from engine.strategies import CaptureSizePolicy


        class Plugin(CaptureSizePolicy):
            """Powers of two."""

            NAME = "{name}"
            SUMMARY = "record powers of two; a beginning"

            def sizes(self, limits: Mapping[str, int]) -> Sequence[int]:
                """Return token counts up to what is allowed."""
                return [2**n for n in range(limits["max_size"].bit_length())]
        ''',
        "PluginConformance",
        "engine serve -cc.capture_size_policy {name}",
        more='\n    KIND = "capture_sizes"\n',
    ),
    "observers": Template(
        '''
        """Receives every event of an engine."""

        import logging

        from engine.events import Event, GraphCaptured

        logger = logging.getLogger(__name__)


        def plugin(event: Event) -> None:
            """Log recordings: take what you want to know of `engine.events`."""
            if isinstance(event, GraphCaptured):
                logger.info("%d tokens recorded in %.1f s", event.num_tokens, event.seconds)
        ''',
        "",
        "engine serve --observers {name}",
        returns="plugin",
    ),
    "commands": Template(
        '''
        """A command of its own under `engine`."""

        import click


        @click.command()
        def plugin() -> None:
            """Say hello."""
            click.echo("hello from {name}")
        ''',
        "",
        "engine {name}",
        returns="plugin",
    ),
}

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "engine-{dashed}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["modular-engine"]

[project.entry-points."engine.{kind}"]
{name} = "engine_{name}"

[tool.hatch.build.targets.wheel]
packages = ["engine_{name}"]
"""
_HOOK = '''\
"""Registers `{name}`; light, so that listing plugins stays quick."""

from typing import Any

from engine.hookspecs import hookimpl

ENGINE_API_VERSION = {version}


@hookimpl
def {hook}() -> Any:
    """Register the plugin."""
    from engine_{name}.plugin import {returns}

    return {returns}
'''
_SUITE = '''\
"""What the contract asks of `{name}`."""
{imports}
from engine.testing import {suite}


class TestContract({suite}):
    strategy = "{name}"
{more}'''
_LOADS = '''\
"""`{name}` is found and loads."""

from engine.registry import Registry


def test_it_loads() -> None:
    assert callable(Registry().load("{kind}", "{name}"))
'''
_README = """\
# {name}

A plugin for Engine.

```sh
pip install --editable .
pytest
{try_it}
```

`engine plugins show {name}` says what it declares, `engine plugins check {name}` whether it keeps
the contract.
"""


def project_files(kind: str, name: str, hook: str, version: int) -> dict[str, str]:
    """Return the files of a project by their path.

    Args:
        kind: one of `TEMPLATES`.
        name: of the plugin, canonical.
        hook: of the kind.
        version: of the plugin API.
    """
    template = TEMPLATES[kind]
    words = {
        "name": name,
        "dashed": name.replace("_", "-"),
        "kind": kind,
        "hook": hook,
        "version": version,
        "returns": template.returns,
        "suite": template.suite,
        "more": template.more,
        "imports": "\nfrom typing import Any\n" if "Any" in template.more else "",
    }
    test = _SUITE if template.suite else _LOADS
    return {
        "pyproject.toml": _PYPROJECT.format(**words),
        "README.md": _README.format(**words, try_it=template.try_it.format(name=name)),
        f"engine_{name}/__init__.py": _HOOK.format(**words),
        f"engine_{name}/plugin.py": dedent(template.source).lstrip().replace("{name}", name),
        f"engine_{name}/py.typed": "",
        f"tests/test_{name}.py": test.format(**words),
    }
