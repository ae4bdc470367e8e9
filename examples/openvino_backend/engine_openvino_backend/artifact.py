"""The artifact: a line of JSON with sizes and a checksum, then the IR of each segment.

OpenVINO reads whatever it is given, so bytes that were damaged must be found before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

IR = tuple[bytes, bytes]
"""The topology (XML) and the constants of one segment."""


def pack(segments: Sequence[IR], version: str) -> bytes:
    """Return the bytes of segments, made by a version of OpenVINO."""
    body = b"".join(part for ir in segments for part in ir)
    header = {
        "openvino": version,
        "sizes": [[len(xml), len(constants)] for xml, constants in segments],
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    return json.dumps(header).encode() + b"\n" + body


def unpack(data: bytes, version: str) -> list[IR]:
    """Return the segments.

    Raises:
        ValueError: the bytes are no artifact, are damaged, or another version made them.
    """
    line, _, body = data.partition(b"\n")
    try:
        header = json.loads(line)
        sizes, made_by = header["sizes"], header["openvino"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("it has no header of OpenVINO segments") from None
    if made_by != version:
        raise ValueError(f"OpenVINO {made_by} made it, this is {version}")
    if hashlib.sha256(body).hexdigest() != header.get("sha256"):
        raise ValueError("its checksum doesn't fit")
    segments, at = [], 0
    for xml, constants in sizes:
        middle, end = at + xml, at + xml + constants
        segments.append((body[at:middle], body[middle:end]))
        at = end
    return segments
