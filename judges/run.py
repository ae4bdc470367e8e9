"""Lets clients and load tools that others wrote judge the server, each where nothing else is.

Starts the demo model once, installs each judge (pinned in `judges.toml`) under `.judges/`, runs its
script `check_NAME.py` against the server, and prints a table. Exits with 1 when one of them failed
or none ran.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".judges"
_START_S, _INSTALL_S, _CHECK_S = 180, 900, 600


@dataclass(frozen=True)
class Judge:
    """A package and what must be installed with it."""

    name: str
    packages: tuple[str, ...]
    what: str

    @property
    def folder(self) -> Path:
        """Its environment."""
        return ENVIRONMENTS / self.name


@dataclass(frozen=True)
class Verdict:
    """What a judge said: passed, failed or not installed, and why."""

    judge: Judge
    outcome: str
    reason: str = ""


def read_judges() -> dict[str, Judge]:
    """Return all judges by name."""
    content = tomllib.loads((HERE / "judges.toml").read_text())
    return {
        name: Judge(name, tuple(entry["packages"]), entry["what"])
        for name, entry in content.items()
    }


@contextmanager
def serving() -> Iterator[str]:
    """Serve the demo model on a free port; yield its address when it is ready.

    Raises:
        click.ClickException: it ended, or isn't ready in time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    engine = Path(sys.executable).with_name("engine")
    # A short context: a request that says nothing of its length takes all of it.
    command = [str(engine), "serve", "-O0", "--port", str(port), "--max-model-len", "256"]
    server = subprocess.Popen(command)
    try:
        _wait_until_ready(server, address)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_ready(server: subprocess.Popen[bytes], address: str) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise click.ClickException(f"the server ended with exit code {server.returncode}")
        try:
            if httpx.get(f"{address}/ready").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise click.ClickException(f"the server wasn't ready within {_START_S} s")


def install(judge: Judge) -> str:
    """Make a judge's environment unless it is there; return what went wrong."""
    stamp, wanted = judge.folder / ".installed", "\n".join(judge.packages)
    if stamp.is_file() and stamp.read_text() == wanted:
        return ""
    subprocess.run([sys.executable, "-m", "venv", judge.folder], check=True)
    pip = [str(judge.folder / "bin/python"), "-m", "pip", "install", "--quiet"]
    try:
        done = subprocess.run(
            [*pip, *judge.packages], capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not installed within {_INSTALL_S} s"
    if done.returncode:
        return _last_line(done.stderr)
    stamp.write_text(wanted)
    return ""


def judge_server(judge: Judge, address: str) -> Verdict:
    """Run one judge's script."""
    if problem := install(judge):
        return Verdict(judge, "not installed", problem)
    script = HERE / f"check_{judge.name.replace('-', '_')}.py"
    paths = f"{judge.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    model = httpx.get(f"{address}/v1/models").json()["data"][0]["id"]
    environment = {**os.environ, "PATH": paths, "JUDGED_ADDRESS": address, "JUDGED_MODEL": model}
    # A session of its own: what the script has started ends with it.
    check = subprocess.Popen(
        [str(judge.folder / "bin/python"), str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, errors = check.communicate(timeout=_CHECK_S)
    except subprocess.TimeoutExpired:
        os.killpg(check.pid, signal.SIGKILL)
        check.communicate()
        return Verdict(judge, "failed", f"no answer within {_CHECK_S} s")
    if check.returncode:
        click.echo(said + errors, err=True)
        return Verdict(judge, "failed", _last_line(errors or said))
    return Verdict(judge, "passed", _last_line(said))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@click.command()
@click.argument("names", nargs=-1)
def main(names: Sequence[str]) -> None:
    """Run the judges NAMES, or all of them."""
    known = read_judges()
    if unknown := sorted({*names} - {*known}):
        raise click.UsageError(f"no judge is called {unknown[0]!r}; there are {', '.join(known)}")
    verdicts = []
    with serving() as address:
        for name in names or known:
            click.echo(f"== {name}", err=True)
            verdicts.append(judge_server(known[name], address))
    table = Table("judge", "what it checks", "verdict", "")
    for verdict in verdicts:
        judge = verdict.judge
        cells = (judge.packages[0], judge.what, verdict.outcome, verdict.reason)
        table.add_row(*map(escape, cells))
    Console().print(table)
    outcomes = {verdict.outcome for verdict in verdicts}
    sys.exit("failed" in outcomes or "passed" not in outcomes)


if __name__ == "__main__":
    main()
