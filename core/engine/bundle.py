"""A directory of artifacts for a machine without a compiler, with a list of what is in it.

A bundle is a cache directory: `--cache-dir BUNDLE --require-cache` starts from it. The file
`bundle.json` beside the artifacts says for which settings and which environment they were made, so
that a machine that they don't fit is told before anything is loaded. No path is in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.artifact_comparison import Difference
from engine.cache_folder import CacheFolder, Entry
from engine.errors import ConfigError

MANIFEST = "bundle.json"
_FORMAT = 1


@dataclass(frozen=True)
class Bundle:
    """A bundle that was written or read.

    Attributes:
        folder: where it is.
        model: what its model is called.
        factors: what the core puts into every key, as it was when the bundle was made:
            environment, settings, code.
        artifacts: file names below the folder, and the SHA-256 of each file.
        num_bytes: of the artifacts together.
    """

    folder: Path
    model: str
    factors: Mapping[str, str]
    artifacts: Mapping[str, str]
    num_bytes: int = 0


def write_bundle(folder: Path, model: str, factors: Mapping[str, str]) -> Bundle:
    """Write the list of what lies in a cache directory, which makes a bundle of it.

    Args:
        folder: a cache directory with artifacts in it.
        model: what the model is called.
        factors: what is in every key whatever the graph.

    Raises:
        ConfigError: the list can't be written.
    """
    entries = CacheFolder(folder).entries()
    listed = [_listed(folder, entry) for entry in sorted(entries, key=lambda entry: entry.key)]
    manifest = {
        "format": _FORMAT,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model,
        "factors": dict(factors),
        "artifacts": listed,
    }
    try:
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder / MANIFEST}: can't be written: {error.strerror}") from error
    digests = {one["file"]: one["sha256"] for one in listed}
    return Bundle(folder, model, factors, digests, sum(entry.size for entry in entries))


def _listed(folder: Path, entry: Entry) -> dict[str, Any]:
    return {
        "file": entry.path.relative_to(folder).as_posix(),
        "size": entry.size,
        "sha256": hashlib.sha256(entry.path.read_bytes()).hexdigest(),
        **entry.about,
    }


def read_bundle(folder: Path) -> Bundle | None:
    """Return the bundle in a directory; None if it is a cache directory like any other.

    Raises:
        ConfigError: its list is damaged or of another version.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != _FORMAT:
            raise ConfigError(
                f"{path}: its format is {manifest['format']!r}, this version of engine reads "
                f"{_FORMAT}; make the bundle again"
            )
        digests = {one["file"]: one["sha256"] for one in manifest["artifacts"]}
        size = sum(int(one["size"]) for one in manifest["artifacts"])
        return Bundle(folder, manifest["model"], dict(manifest["factors"]), digests, size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path}: is no list of a bundle ({error!r}); make the bundle again"
        ) from error


def check_bundle(bundle: Bundle, factors: Mapping[str, str]) -> None:
    """Check that artifacts of a bundle can be used here.

    Args:
        bundle: what was found.
        factors: the same that `write_bundle` was given, as they are here.

    Raises:
        ConfigError: it was made for another environment or other settings, or files are missing;
            names all of them.
    """
    missing = [name for name in bundle.artifacts if not (bundle.folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"{bundle.folder}: {len(missing)} artifacts of the bundle are missing, {missing[0]} "
            "for one; copy it again"
        )
    names = bundle.factors.keys() & factors.keys()
    differences = [
        Difference(name, bundle.factors[name], factors[name])
        for name in sorted(names)
        if bundle.factors[name] != factors[name]
    ]
    if differences:
        raise ConfigError(
            f"{bundle.folder}: the bundle of {bundle.model} was made for something else (there "
            f"and here): {_listing(differences)}; start with the settings and on the kind of "
            "machine it was made for, or make it again with `engine compile`"
        )


def _listing(differences: Iterable[Difference]) -> str:
    return ", ".join(map(str, differences))
