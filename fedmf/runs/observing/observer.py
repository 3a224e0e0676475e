"""What an observer of a run is, and what it is shown."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.records import read_tensors, write_tensors
from fedmf.values import check_whole

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class ObserverError(RuntimeError):
    """An observer raised; the round that it was shown is kept, and the run can be gone on with."""


@dataclass(frozen=True, eq=False)
class Standing:
    """Where a run stands: what it has released and recorded, and nothing else about its users.

    Args:
        rounds: how many rounds are released; 0 is the initial model.
        horizon: n.
        opening: whether the run stood here when this process opened it. An earlier process may have shown it.
        metrics: the rows of the metrics table so far, by released rounds. Columns whose name ends with
            ``_not_private`` come from users' own examples without noise, and no ε counts them.
        path: the run directory.
        released: the model, flat.
        arrays: name and shape of each trained tensor, in the order of the flat model.

    Guarantees:
        Round t is committed before a `Standing` of it exists. Nothing in it is who took part or failed.
    """

    rounds: int
    horizon: int
    opening: bool
    metrics: Mapping[int, Mapping[str, Any]]
    path: Path
    released: Tensor
    arrays: Sequence[tuple[str, tuple[int, ...]]]

    @property
    def row(self) -> Mapping[str, Any] | None:
        """The newest model's metrics, with ε so far; None if it was not evaluated."""
        return self.metrics.get(self.rounds)

    @property
    def public(self) -> dict[str, float]:
        """Of `row` what may be shown to everybody: numbers that are there and not marked as not private."""
        row = self.row or {}
        return {name: value for name, value in row.items() if value is not None and is_public(name)}

    def parameters(self) -> Tensor:
        """A copy of the newest released model, shape (d,)."""
        return self.released.detach().clone()

    def model(self) -> dict[str, Tensor]:
        """A copy of it by the names of the trained parameters, float32, as `load_model` gives them."""
        flat = self.released.detach().to("cpu", torch.float32)
        parts = flat.split([math.prod(shape) for _, shape in self.arrays])
        named = zip(self.arrays, parts, strict=True)
        return {name: part.reshape(shape).clone() for (name, shape), part in named}


#: Called with every `Standing`.
Observer = Callable[[Standing], object]


@runtime_checkable
class LastingObserver(Protocol):
    """An observer that holds something open while a run is carried out, such as `TensorBoard`."""

    def observing(self) -> AbstractContextManager[Observer]:
        """What is called, while the context lasts."""
        ...


def is_public(column: str) -> bool:
    """Whether a column of the metrics table is public or noised.

    >>> is_public("loss"), is_public("federated_loss_not_private")
    (True, False)
    """
    return not column.endswith("_not_private")


@dataclass(frozen=True)
class Checkpoints:
    """An observer that writes a released model every so many rounds, and the last.

    A released model is as private as the run's statement says, whatever is done with it. Files are called
    ``round-0000020.safetensors``; they are whole or absent, and one that is there is never replaced.

    Args:
        folder: where; made if it is missing.
        every: rounds between files.
        form: of the files; "pt" is for ``torch.load(..., weights_only=True)``.

    Raises:
        ValueError: a value out of its range.

    Guarantees:
        Of an interrupted and resumed run there is exactly one file for each such round whose model was kept.
    """

    folder: str | Path
    every: int = 1
    form: Literal["safetensors", "pt"] = "safetensors"

    def __post_init__(self) -> None:
        check_whole("every (rounds between files of models)", self.every)
        if self.form not in ("safetensors", "pt"):
            raise ValueError(f"form (of files of models) must be 'safetensors' or 'pt'; got {self.form!r}.")

    def __call__(self, standing: Standing) -> None:
        """Write the model, if it is due and not there.

        Raises:
            ConfigError: another model is in its place, or the folder cannot be written.
        """
        t = standing.rounds
        if t == 0 or (t % self.every and t != standing.horizon):
            return
        folder, model = Path(self.folder), standing.model()
        file = folder / f"round-{t:07d}.{self.form}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the folder {folder}: {error.strerror}.") from None
        if standing.opening and file.exists() and _same(read_tensors(file), model):
            return
        write_tensors(file, model, {"rounds": str(t)})


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name].view(torch.int32), second[name].view(torch.int32)) for name in first
    )


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
