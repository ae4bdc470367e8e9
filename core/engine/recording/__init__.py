"""What strategies that record share: which shapes, padding to one, recording one, lazily or not.

Public: a stranger's strategy says what it plans and how it records one batch, and gets dispatch,
transactional capture, lazy capture, checks and events from here.
"""

from engine.recording.checkpoints import Checkpoint, Probe, first_divergence
from engine.recording.shapes import RECORDING_SETTINGS, ShapeTable, mixed_shape
from engine.recording.strategy import RecordingStrategy, Replay

__all__ = [
    "Checkpoint",
    "Probe",
    "RECORDING_SETTINGS",
    "RecordingStrategy",
    "Replay",
    "ShapeTable",
    "first_divergence",
    "mixed_shape",
]
