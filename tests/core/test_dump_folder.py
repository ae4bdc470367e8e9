"""The folder of a dump: an index that is always whole, names that are readable, no lost start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from engine.dump import GraphDump
from engine.errors import ConfigError
from engine.runtime.dump_folder import FolderDump, open_dump


def opened(folder: Path, name: str = "model") -> FolderDump:
    dump = open_dump(folder, name)
    assert isinstance(dump, FolderDump)
    return dump


def index(dump: FolderDump) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((dump.folder / "index.json").read_text())
    return content


def test_without_a_folder_everything_is_dropped() -> None:
    dump = open_dump(None, "model")
    assert not dump.active
    dump.inside("a").text("b", "c")
    dump.missing("d", "e")
    dump.graph("f", fx.symbolic_trace(torch.nn.Identity()))
    assert type(dump) is GraphDump


def test_what_is_written_is_in_both_indexes(tmp_path: Path) -> None:
    dump = opened(tmp_path / "not" / "there")
    dump.text("plan.txt", "text\n", "the plan")
    dump.inside("pieces").inside("piece 3 [1-8]").graph(
        "graph", fx.symbolic_trace(torch.nn.ReLU()), "a piece"
    )
    dump.missing("code", "no backend")
    files = {each["file"]: each["about"] for each in index(dump)["files"]}
    assert files == {"plan.txt": "the plan", "pieces/piece-3-1-8/graph.py": "a piece"}
    assert "relu" in (dump.folder / "pieces/piece-3-1-8/graph.py").read_text()
    assert index(dump)["missing"] == [{"what": "code", "why": "no backend"}]
    readme = (dump.folder / "README.txt").read_text()
    assert "a piece" in readme
    assert "no backend" in readme


def test_a_name_that_is_used_again_is_replaced(tmp_path: Path) -> None:
    dump = opened(tmp_path)
    dump.text("a.txt", "first")
    dump.text("a.txt", "second")
    assert (dump.folder / "a.txt").read_text() == "second"
    assert [each["file"] for each in index(dump)["files"]] == ["a.txt"]


@pytest.mark.parametrize("name", ["../../out.txt", "/out.txt", "..", "", "a\x00b", "ü/n:*.py"])
def test_no_name_leaves_the_folder(tmp_path: Path, name: str) -> None:
    dump = opened(tmp_path / "dumps")
    dump.inside("..").text(name, "text")
    (file,) = index(dump)["files"]
    path = dump.folder / file["file"]
    assert path.resolve().is_relative_to(dump.folder.resolve())
    assert path.read_text() == "text"


def test_each_start_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folders = {opened(tmp_path, "same name").folder for _ in range(3)}
    assert len(folders) == 3
    assert all("same-name" in folder.name for folder in folders)


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"debug_dump='.*/file/x': can't be written .*; name a"):
        open_dump(tmp_path / "file" / "x", "model")


def test_a_dump_that_cannot_go_on_is_told_once_and_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dump = opened(tmp_path)
    dump.text("in the way", "a file where a folder is wanted")
    dump.text("in the way/a.txt", "text")
    dump.text("later.txt", "text")
    assert len([r for r in caplog.records if "ends here" in r.message]) == 1
    assert index(dump)["files"] == [{"file": "in-the-way", "about": ""}]


def test_a_graph_whose_metadata_cannot_be_shown_is_written_without(tmp_path: Path) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("not for eyes")

    graph = fx.symbolic_trace(torch.nn.ReLU())
    graph.print_readable = Odd().__repr__  # type: ignore[method-assign, assignment]  # fails
    dump = opened(tmp_path)
    dump.graph("odd", graph)
    text = (dump.folder / "odd.py").read_text()
    assert text.startswith("# without shapes")
    assert "relu" in text
