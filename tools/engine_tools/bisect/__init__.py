"""Names the smallest part of a combination that makes it answer wrongly."""

from engine_tools.bisect.ladder import Bisection, Finding, Trial
from engine_tools.bisect.reproducer import reproducer, smallest_batch

__all__ = ["Bisection", "Finding", "Trial", "reproducer", "smallest_batch"]
