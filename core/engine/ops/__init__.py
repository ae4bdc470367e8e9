"""The operators that models call. Public: plugins build models and passes from these."""

from engine.ops.attention import attention
from engine.ops.break_ops import break_op, is_break_op, known_break_ops

__all__ = ["attention", "break_op", "is_break_op", "known_break_ops"]
