"""What passes need to find parts of a traced graph and to put an operator in their place.

Public: a pass finds a part by its structure (`match_rms_norm`, `match_rotary`,
`match_gated`), asks a `GraphEditor` whether anybody else can see inside it, and replaces it.
"""

from engine.patterns.editing import GraphEditor, argument, example, inputs, is_call, is_linear
from engine.patterns.gated import Gated, match_gated
from engine.patterns.norms import RmsNorm, is_size, match_rms_norm
from engine.patterns.rotary import Rotary, is_heads, match_rotary

__all__ = [
    "Gated",
    "GraphEditor",
    "RmsNorm",
    "Rotary",
    "argument",
    "example",
    "inputs",
    "is_call",
    "is_heads",
    "is_linear",
    "is_size",
    "match_gated",
    "match_rms_norm",
    "match_rotary",
]
