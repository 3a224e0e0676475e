"""``fedmf compile``: machine code made before it is needed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from fedmf.runs import RoundRecord

#: Carried out unless configurations are named: each asks for other programs of training, clipping, noise.
_SHIPPED: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("digits.toml", {}),
    ("digits.toml", {"mechanism.kind": "bisr"}),
    ("jme-adam.toml", {}),
    ("million.toml", {"data.users": 200, "cohorts.users-per-round": 20}),
)
_ROUNDS: Final = 2


def compile_programs(
    configs: list[Path] = typer.Argument(
        None, metavar="[CONFIG.toml]...", help="Only what runs of these use.", show_default=False
    ),
) -> None:
    """Compile what runs and streams use, so that the first round of the first run need not wait for it.

    Two rounds of some configurations that ship with fedmf, or of those that are named, are carried out in a
    folder that is removed, and a few rows of a stream. Programs, and mechanisms that were searched, are kept
    for this user, processor and version under $FEDMF_CACHE, else ~/.cache/fedmf; what is there already is not
    made again. Nothing has to be compiled beforehand: a run that misses something compiles it.

    Example: fedmf compile
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from fedmf.compiled import kept_code
    from fedmf.errors import ConfigError

    files = kept_code()
    if files is None:
        raise ConfigError(
            "FEDMF_CACHE must name a folder for `fedmf compile`; got 'off', which keeps nothing."
        )
    begun = time.perf_counter()
    chosen = [(str(config), {}) for config in configs] if configs else list(_SHIPPED)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("imports", total=len(chosen) + 1)
        for name, overrides in chosen:
            progress.update(bar, description=" ".join([name, *map(str, overrides.values())]))
            _carry_out(name, overrides, shipped=not configs)
            progress.advance(bar)
        progress.update(bar, description="stream")
        _stream()
        progress.advance(bar)
    # How many were made is not said: it may depend on how many examples users own.
    typer.echo(f"compiled in {time.perf_counter() - begun:.0f} s; kept in {files.folder}")


def _carry_out(name: str, overrides: Mapping[str, Any], shipped: bool) -> None:
    """The first rounds of a run, whose model nobody sees."""
    from fedmf.runs import Session, load_run, run_in_process
    from fedmf.runs.tables import shipped_file

    config = Path(str(shipped_file(name))) if shipped else Path(name)
    with (
        tempfile.TemporaryDirectory(prefix="fedmf-compile-") as folder,
        Session.start(Path(folder) / "run", load_run(config, overrides)) as session,
    ):
        run_in_process(session, _first_rounds)


def _first_rounds(record: RoundRecord) -> bool:
    return record.rounds >= _ROUNDS


def _stream() -> None:
    """Rows of moments, one by one and many at once."""
    import torch

    from fedmf.mechanisms.joint import UserRange
    from fedmf.mechanisms.registry import build
    from fedmf.mechanisms.workload import average
    from fedmf.moments import FullMatrix, MomentStream, jme
    from fedmf.noise import NoiseKey
    from fedmf.participation import Participation

    contract, work = Participation(8, 1, 8), average(8)
    C = build("banded-toeplitz", contract, work, bands=4).factorization
    mechanism = jme(C, C, contract, UserRange(1.0, 3, "replace-one"), 1.0)
    stream = MomentStream(mechanism, FullMatrix(3), work, key=NoiseKey.from_os())
    stream.update(torch.zeros(3, dtype=torch.float64))
    stream.extend(torch.zeros(7, 3, dtype=torch.float64))
