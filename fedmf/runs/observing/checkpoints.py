"""Released models as files, every so many rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.records import read_tensors, write_tensors
from fedmf.runs.observing.observer import Standing
from fedmf.values import check_whole


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
