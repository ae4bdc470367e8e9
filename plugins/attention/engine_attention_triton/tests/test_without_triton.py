"""Where Triton isn't installed the plugin is described and refused, not broken."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
sys.modules["triton"] = None  # importing it fails from here on
from importlib import util
real = util.find_spec
util.find_spec = lambda name, *rest: None if name == "triton" else real(name, *rest)
from engine.facts import DeviceFacts, Facts, ModelFacts
from engine.registry import Registry
plugin = Registry().load("attention", "triton")
model = ModelFacts("Tiny", "float32", 128)
for device in ("cpu", "cuda"):
    print(plugin.refuse(Facts(DeviceFacts(device), model)).reason)
"""


def test_it_loads_and_says_why_it_can_not_be_used() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        "triton runs on cuda, this device is cpu",
        "Triton isn't installed",
    ]
