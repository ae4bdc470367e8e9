"""The observer that docs/observers.md shows works as it stands, and the page misses no event."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from engine import LLM, CompilationConfig, EngineConfig, SamplingParams
from engine import events as module
from engine.events import Event
from engine.testing.distributions import PluginMaker
from engine.testing.tiny import write_tiny_model

PAGE = (Path(__file__).parents[1] / "docs/observers.md").read_text()


def test_every_event_is_on_the_page_with_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))
    kinds = [k for k in vars(module).values() if isinstance(k, type) and issubclass(k, Event)]
    assert set(rows) == {kind.__name__ for kind in kinds} - {"Event"}
    for kind in kinds:
        for name in kind.__dataclass_fields__:
            assert f"`{name}:" in rows[kind.__name__]


def test_the_plugin_of_the_page_watches_an_engine(tmp_path: Path, make_plugin: PluginMaker) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    made = make_plugin("slow_starts", kind="observers", source=source)
    folder = write_tiny_model(tmp_path / "model")
    chosen = CompilationConfig(
        mode="none", cudagraph_mode="piecewise", cudagraph_capture_sizes=(2,)
    )
    config = EngineConfig(
        model=str(folder),
        observers=("slow_starts",),
        threads=1,
        graph_device="simulated",
        compilation_config=chosen,
    )
    with LLM(engine_config=config) as llm:
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        llm.generate([[5, 6, 7, 8]], params, progress=False)
    watch = sys.modules[made.module].watch
    # The prompt is longer than what was recorded; the two steps that decode are replayed.
    assert watch.without_graph == {"no recorded shape covers the batch": 1}
    assert watch.seconds > 0
