"""The operators that models call. Public: plugins build models and passes from these."""

from engine.ops.activation import silu_and_mul
from engine.ops.attention import attention, rotating_attention
from engine.ops.break_ops import break_op, is_break_op, known_break_ops, written_arguments
from engine.ops.fused import add_rms_norm, qk_norm_rope, silu_mul
from engine.ops.launching import compiling_ahead, launch
from engine.ops.likeliest import likeliest
from engine.ops.norm import rms_norm
from engine.ops.operator import Operator, operator
from engine.ops.overlapping import overlap
from engine.ops.packed import packed_linear
from engine.ops.recordable import (
    OperatorWatch,
    declare_recordable,
    is_recordable,
    needs_values,
    unrecordable,
)
from engine.ops.rotary import apply_rotary, rotary_at, rotary_table

__all__ = [
    "Operator",
    "OperatorWatch",
    "add_rms_norm",
    "apply_rotary",
    "attention",
    "break_op",
    "compiling_ahead",
    "declare_recordable",
    "is_break_op",
    "is_recordable",
    "known_break_ops",
    "launch",
    "likeliest",
    "needs_values",
    "operator",
    "overlap",
    "packed_linear",
    "qk_norm_rope",
    "rms_norm",
    "rotary_at",
    "rotary_table",
    "rotating_attention",
    "silu_and_mul",
    "silu_mul",
    "unrecordable",
    "written_arguments",
]
