"""Writes the reference of the plugin contract from its source: hooks and interfaces."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from pkgutil import resolve_name

from engine.events import Event
from engine.hookspecs import BASE_OF_KIND, HOOK_OF_KIND, PROJECT, EngineSpec

INTERFACES = {
    "What every plugin declares": (
        "engine.plugin:Plugin",
        "engine.plugin:Refusal",
        "engine.plugin:Numerics",
        "engine.plugin:StartupCost",
        "engine.cache_key:OutOfKey",
    ),
    "Compile modes": (
        "engine.strategies:CompileStrategy",
        "engine.strategies:CompileJob",
        "engine.strategies:CompiledModel",
        "engine.strategies:CompileReport",
    ),
    "Graph modes": (
        "engine.strategies:GraphStrategy",
        "engine.strategies:GraphJob",
        "engine.strategies:Decision",
        "engine.strategies:ModelInputs",
        "engine.recording:RecordingStrategy",
        "engine.graph_device:GraphDevice",
        "engine.graph_device:RecordedGraph",
        "engine.graph_device:Recorder",
    ),
    "Backends": ("engine.strategies:Backend", "engine.artifacts:ArtifactStore"),
    "Families of backends and others": ("engine.families:PluginFamily",),
    "FX passes": ("engine.strategies:Pass", "engine.ops:Operator", "engine.patterns:GraphEditor"),
    "Capture sizes": ("engine.strategies:CaptureSizePolicy",),
    "Attention": (
        "engine.attention:AttentionPlugin",
        "engine.attention:AttentionSpec",
        "engine.attention:AttentionInputs",
        "engine.attention:Rotation",
    ),
    "Models": ("engine.models:ModelPlugin", "engine.models:CausalLM"),
    "Weight loaders": ("engine.weights:WeightsPlugin",),
    "Grammars for structured outputs": (
        "engine.grammars:GrammarPlugin",
        "engine.grammars:Grammar",
        "engine.grammars:Matcher",
        "engine.structured_outputs:StructuredOutputs",
    ),
    "Tool-call parsers": (
        "engine.tool_parsers:ToolParserPlugin",
        "engine.tool_parsers:ToolParser",
        "engine.tool_parsers:TextDelta",
        "engine.tool_parsers:CallDelta",
        "engine.json_calls:CallReader",
    ),
    "Presets": ("engine.presets:Preset", "engine.presets:Level"),
    "What is known and what runs": (
        "engine.facts:Facts",
        "engine.facts:DeviceFacts",
        "engine.facts:ModelFacts",
        "engine.facts:GraphSupport",
        "engine.batch:BatchShape",
        "engine.forward_context:ForwardContext",
    ),
    "What is written for people": ("engine.dump:GraphDump",),
    "Events": (
        "engine.events:SettingsResolved",
        "engine.events:PhaseStarted",
        "engine.events:PhaseAdvanced",
        "engine.events:PhaseFinished",
        "engine.events:CompiledUnit",
        "engine.events:ModelCompiled",
        "engine.events:CapturePlanned",
        "engine.events:GraphCaptured",
        "engine.events:EngineReady",
        "engine.events:StepRan",
        "engine.events:Notice",
        "engine.events:EventBus",
    ),
}
"""What a plugin author meets, by section; `module:class`."""


def hooks() -> str:
    """Return a table of the hooks."""
    lines = ["| entry-point group | hook | returns | called |\n| --- | --- | --- | --- |\n"]
    for kind, hook in HOOK_OF_KIND.items():
        meaning, _, called = (inspect.getdoc(getattr(EngineSpec, hook)) or "").partition("\n\n")
        base = BASE_OF_KIND.get(kind)
        subclass = f" A subclass of `{base.replace(':', '.')}`." if base else ""
        when = " ".join(called.split()).removeprefix("Called ")
        lines.append(f"| `{PROJECT}.{kind}` | `{hook}()` | {meaning}{subclass} | {when} |\n")
    return "".join(lines)


def events() -> str:
    """Return a table of the events: fields, and when each is emitted."""
    lines = ["| event | fields | emitted when |\n| --- | --- | --- |\n"]
    for path in INTERFACES["Events"]:
        cls = resolve_name(path)
        if not issubclass(cls, Event):
            continue
        fields = ", ".join(f"`{f.name}: {f.type}`" for f in dataclasses.fields(cls))
        meaning = " ".join((inspect.getdoc(cls) or "").split())
        fields = fields.replace("|", r"\|")
        lines.append(f"| `{cls.__name__}` | {fields} | {meaning} |\n")
    return "".join(lines)


def interfaces() -> str:
    """Return every interface as a listing of its public part."""
    parts = []
    for title, paths in INTERFACES.items():
        parts.append(f"### {title}\n")
        for path in paths:
            module, _, name = path.partition(":")
            parts.append(f"`{module}.{name}`\n\n```python\n{listing(resolve_name(path))}\n```\n")
    return "\n".join(parts)


def listing(cls: type) -> str:
    """Return a class's source without its private members and the bodies of its methods."""
    module = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    (tree,) = (node for node in module.body if isinstance(node, ast.ClassDef))
    documentation, *body = (node for node in tree.body if not _is_private(node))
    for node in body:
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node) is not None
            node.body = node.body[:1] if documented else [ast.Expr(ast.Constant(...))]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            # An attribute's description, which may stand on several lines in the source.
            node.value.value = " ".join(str(node.value.value).split())
    tree.body = [documentation, *body]
    return ast.unparse(tree)


def _is_private(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name.startswith("_") and node.name != "__init__"
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target).startswith("_")
    return False
