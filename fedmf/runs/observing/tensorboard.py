"""Curves of a run in TensorBoard, written by its own library."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmf.errors import ConfigError
from fedmf.runs.observing.observer import Observer, Standing

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


@dataclass(frozen=True)
class TensorBoard:
    """An observer that writes a run's public metrics, with ε so far, for ``tensorboard --logdir FOLDER``.

    Columns called ``…_not_private`` are left out, since such pages are shown around.

    Args:
        folder: of the event files; several runs in one folder's subfolders are shown together.

    Raises:
        ConfigError: the extra ``tensorboard`` is not installed, or a file is at that place.

    Guarantees:
        Of an interrupted and resumed run every evaluated round is shown once: what an earlier process wrote
        of the round at which this one begins, or of later ones, is purged.
    """

    folder: str | Path

    def __post_init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError("TensorBoard needs the extra: pip install 'fedmf[tensorboard]'.")
        if Path(self.folder).exists() and not Path(self.folder).is_dir():
            raise ConfigError(f"folder (of TensorBoard) must be a directory; got the file {self.folder}.")

    def observing(self) -> AbstractContextManager[Observer]:
        """What writes, as long as a run is carried out."""
        return _writing(Path(self.folder))


@contextmanager
def _writing(folder: Path) -> Iterator[Observer]:
    writers: list[SummaryWriter] = []

    def write(standing: Standing) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        if not writers:
            writers.append(SummaryWriter(str(folder), purge_step=standing.rounds))
        for name, value in standing.public.items():
            writers[0].add_scalar(name, value, standing.rounds)
        writers[0].flush()

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
