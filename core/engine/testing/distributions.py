"""Throw-away distributions: real metadata and real modules, for tests of plugins."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.hookspecs import API_VERSION, HOOK_OF_KIND

_CLASSES = {
    "compile_modes": """
from engine.strategies import CompiledModel, CompileReport, CompileStrategy as Base

class Made(Base):
    def compile(self, job):
        return CompiledModel(call=job.model, report=CompileReport())
""",
    "cudagraph_modes": """
from engine.strategies import Decision, GraphStrategy as Base

class Made(Base):
    NEEDS_GRAPHS = False
    def plan(self, job):
        return ()
    def prepare(self, job):
        self.call = job.compiled.call
    def dispatch(self, shape):
        return Decision("eager", shape, "made for a test")
    def run(self, decision, inputs):
        return self.call(inputs.input_ids, inputs.positions)
""",
    "backends": """
from engine.strategies import Backend as Base

class Made(Base):
    def compile(self, graph, example_inputs, *, dynamic):
        return graph.forward
""",
    "observers": """
def Made(event):
    pass
""",
}


@dataclass(frozen=True)
class MadePlugin:
    """One installed throw-away plugin."""

    kind: str
    name: str
    distribution: str
    module: str
    folder: Path
    """What to put on PYTHONPATH, so that another process has it installed too."""


class PluginMaker:
    """Installs throw-away distributions: real metadata and a real module in a folder on sys.path.

    What isn't said is right: `make_plugin("fast")` is a working compile mode called `fast`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []

    def __call__(
        self,
        name: str,
        *,
        kind: str = "compile_modes",
        distribution: str | None = None,
        version: str = "1.0",
        source: str | None = None,
        preamble: str = "",
        api_version: object = API_VERSION,
        hook: str | None = None,
        arguments: str = "",
        attributes: Mapping[str, object] | None = None,
        body: str | None = None,
        returns: str = "Made",
    ) -> MadePlugin:
        """Install one plugin; asking again for the same distribution adds a plugin to it.

        Args:
            name: of the entry point, and the class's NAME.
            kind: of the entry-point group.
            distribution: its name; made up when omitted.
            version: of the distribution.
            source: the whole module, instead of what the rest describes.
            preamble: the module's first lines.
            api_version: ENGINE_API_VERSION; None leaves the line out.
            hook: name of the implemented hook; the right one by default.
            arguments: the hook's parameters.
            attributes: class attributes besides or instead of NAME and SUMMARY.
            body: defines `Base` and `Made`, instead of a working class of the kind.
            returns: what the hook returns, as an expression.
        """
        module = f"made_{secrets.token_hex(6)}"
        distribution = distribution or f"dist-{secrets.token_hex(4)}"
        if source is None:
            declared = {"NAME": name, "SUMMARY": f"{name}, for a test", **(attributes or {})}
            lines = [
                preamble,
                "from engine.hookspecs import hookimpl",
                f"ENGINE_API_VERSION = {api_version!r}" if api_version is not None else "",
                _CLASSES[kind] if body is None else body,
                *(f"Made.{key} = {value!r}" for key, value in declared.items()),
                f"@hookimpl\ndef {hook or HOOK_OF_KIND[kind]}({arguments}):\n    return {returns}",
            ]
            source = "\n".join(lines)
        (self.folder / f"{module}.py").write_text(source)
        self.modules.append(module)
        self._register(distribution, version, kind, name, module)
        return MadePlugin(kind, name, distribution, module, self.folder)

    def _register(self, distribution: str, version: str, kind: str, name: str, target: str) -> None:
        stem = distribution.replace("-", "_")
        info = self.folder / f"{stem}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[engine.{kind}]\n{name} = {target}\n")
