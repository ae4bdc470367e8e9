"""Looks at a machine before anything is loaded: what a start needs, and what is missing."""

from engine_tools.doctor.examination import CHECKS, examine
from engine_tools.doctor.findings import Finding, Level, Patient

__all__ = ["CHECKS", "Finding", "Level", "Patient", "examine"]
