"""Where the device's memory goes: weights, activations, graphs, the KV cache, and what is left."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from engine.records import Record


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of one device.

    Attributes:
        total: of the device.
        share: what of it the engine may use (`memory_utilization`), 0 to 1.
        elsewhere: taken by other processes, and by the driver for this one.
        weights: parameters, buffers and the static inputs.
        activations: what the largest step takes besides, with its logits.
        graphs: what recorded graphs take; estimated before they are recorded.
        cache: the KV cache.
    """

    total: int
    share: float
    elsewhere: int
    weights: int
    activations: int
    graphs: int = 0
    cache: int = 0

    @property
    def spent(self) -> int:
        """Everything that is needed before the first block of the cache."""
        return self.elsewhere + self.weights + self.activations + self.graphs

    @property
    def free(self) -> int:
        """What is left of the engine's share; negative when it was exceeded."""
        return int(self.total * self.share) - self.spent - self.cache

    def share_for(self, cache: int) -> float:
        """Return the `memory_utilization` that a cache of so many bytes would need."""
        return math.ceil(100 * (self.spent + cache) / self.total) / 100

    def why_not(self, cache: int) -> str:
        """Say what the memory went to, and what would have to change for a cache of this size."""
        parts = ", ".join(f"{name} {human(size)}" for name, size in self._parts())
        needed = self.share_for(cache)
        if needed > self.share and needed <= 1:
            remedy = f"raise --memory-utilization to {needed:.2f}"
        else:
            remedy = "lower --max-num-batched-tokens, record fewer sizes, or free the device"
        allowed = human(int(self.total * self.share))
        return f"{allowed} of {human(self.total)} may be used and {parts} are taken; {remedy}"

    def _parts(self) -> list[tuple[str, int]]:
        return [
            ("other processes and the driver", self.elsewhere),
            ("weights", self.weights),
            ("activations", self.activations),
            ("graphs", self.graphs),
        ]

    def with_cache(self, cache: int) -> MemoryUse:
        """Return a copy with the cache's bytes."""
        return replace(self, cache=cache)

    def records(self) -> list[Record]:
        """Return the memory table, a record for each line."""
        reasons = {
            "elsewhere": (self.elsewhere, "other processes, and the driver for this one"),
            "weights": (self.weights, "parameters, buffers and static inputs"),
            "activations": (self.activations, "the largest step, with its logits"),
            "graphs": (self.graphs, "recorded graphs"),
            "kv_cache": (self.cache, "keys and values"),
            "free": (self.free, f"left of {self.share:g} of {human(self.total)}"),
        }
        return [
            Record(f"memory.{name}", "", human(size), "memory", reason)
            for name, (size, reason) in reasons.items()
        ]

    def table(self) -> str:
        """Return the memory table as text."""
        return "\n".join(
            f"{record.setting.partition('.')[2]:12s} {record.effective:>10s}  {record.reason}"
            for record in self.records()
        )


def human(size: int) -> str:
    """Return a number of bytes as GiB or MiB."""
    if abs(size) >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.0f} MiB"
