"""Proves that a combination of modes answers as the model's own Python does."""

from engine_tools.verify.answers import Answer, Answers, answer
from engine_tools.verify.comparison import Comparison, Divergence, compare
from engine_tools.verify.matrix import Cell, Combination, check_all, combinations
from engine_tools.verify.report import Check, Report
from engine_tools.verify.verification import Verification, reference_settings
from engine_tools.verify.workload import Batch, Limits, workload

__all__ = [
    "Answer",
    "Answers",
    "Batch",
    "Cell",
    "Check",
    "Combination",
    "Comparison",
    "Divergence",
    "Limits",
    "Report",
    "Verification",
    "answer",
    "check_all",
    "combinations",
    "compare",
    "reference_settings",
    "workload",
]
