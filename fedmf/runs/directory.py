"""The run directory: everything a run needs to continue, and everything it reports."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tomli_w
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.noise import NoiseKey
from fedmf.participation import Participation
from fedmf.records import Ledger, load_checkpoint, save_checkpoint, sync_directory, write_durably
from fedmf.runs.config import Config

__all__ = ["RunDirectory", "read_config"]

CONFIG, KEY, LEDGER, CHECKPOINTS = "config.toml", "noise.key", "ledger.sqlite", "checkpoints"
#: The budgets of users as they were when the run began; a resumed run uses these.
BUDGETS = "user-budgets"


class RunDirectory:
    """An open run directory; at most one process can hold it for writing.

    Use :meth:`create` or :meth:`open`, preferably as a context manager.

    Guarantees:
        A directory either holds a complete run or does not exist: it is built beside its place and
        renamed. After a crash, :meth:`restore` returns exactly the last state that was committed.
    """

    def __init__(self, path: Path, config: Config, key: NoiseKey, ledger: Ledger) -> None:
        self.path, self.config, self.key, self.ledger = path, config, key, ledger
        self._kept: Sequence[str] = ()

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        participation: Participation,
        key: NoiseKey,
        header: Mapping[str, Any],
    ) -> Self:
        """Create the directory of a new run.

        Raises:
            ConfigError: the place is taken or cannot be written.
        """
        path = path.resolve()
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                hint = "resume it with --resume" if (path / LEDGER).exists() else "choose another directory"
                raise ConfigError(f"output directory {path} is not empty: it belongs to another run; {hint}.")
            path.parent.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            raise ConfigError(f"cannot create output directory {path}: {error.strerror}.") from None
        try:
            (building / CHECKPOINTS).mkdir()
            write_durably(building / CONFIG, tomli_w.dumps(config.to_flat()).encode())
            if config.user_budgets:
                write_durably(building / BUDGETS, Path(config.user_budgets).expanduser().read_bytes())
            key.save(building / KEY)
            Ledger.create(building / LEDGER, participation, header).close()
            os.chmod(building, 0o755)
            os.replace(building, path)
            sync_directory(path.parent)
        except OSError as error:
            raise ConfigError(f"cannot create output directory {path}: {error.strerror}.") from None
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the directory of a run that was started before.

        Raises:
            ConfigError, LedgerError, ValueError: not a run directory, damaged, or held by another process.
        """
        path = path.resolve()
        config = read_config(path)
        ledger = Ledger.open(path / LEDGER)
        try:
            return cls(path, config, _load_key(path / KEY, ledger.header), ledger)
        except BaseException:
            ledger.close()
            raise

    def close(self) -> None:
        """Let another process have the directory."""
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restore(self) -> tuple[int, Tensor, dict[str, Tensor], dict[str, Any]] | None:
        """(rounds released, θ, optimizer state, position of the noise), None before the first commit.

        The state is the last that was kept. Rounds released after it (see `commit_row`) are not in it: its
        position of the noise tells how many rounds are.
        """
        committed = self.ledger.checkpoint()
        if committed is None:
            return None
        t, *self._kept = committed
        name, digest = self._kept
        return t + 1, *load_checkpoint(self.path / CHECKPOINTS / name, digest)

    def keep_initial(self, parameters: Tensor, state: Mapping[str, Tensor], noise: Mapping[str, Any]) -> None:
        """Write the state before round 0, for a run whose first rounds are committed without theirs."""
        self._kept = self._write(0, parameters, state, noise)

    def commit(
        self,
        t: int,
        users: Sequence[str],
        parameters: Tensor,
        state: Mapping[str, Tensor],
        noise: Mapping[str, Any],
    ) -> None:
        """Make round t (0-based) final: write its state, then the ledger row that makes it count."""
        kept = self._write(t + 1, parameters, state, noise)
        self._commit_round(t, users, kept)
        self._kept = kept
        # The round counts from here on: a file that cannot be tidied away must not make it look failed.
        with contextlib.suppress(OSError):
            for old in (self.path / CHECKPOINTS).iterdir():
                if old.name != kept[0]:
                    old.unlink(missing_ok=True)

    def commit_row(self, t: int, users: Sequence[str]) -> None:
        """Make round t final without keeping its state: its row of noise and its participations are spent.

        A run that is interrupted before the next `commit` goes on with round t + 1 from the last state kept:
        the round's work is lost, never repeated.
        """
        self._commit_round(t, users, self._kept)

    def _write(
        self, rounds: int, parameters: Tensor, state: Mapping[str, Tensor], noise: Mapping[str, Any]
    ) -> tuple[str, str]:
        name = f"after-round-{rounds:07d}.npz"
        try:
            digest = save_checkpoint(self.path / CHECKPOINTS / name, parameters, state, noise)
        except OSError as error:
            raise ConfigError(
                f"cannot write checkpoint of round {rounds}: {error.strerror}; nothing was released."
            ) from None
        return name, digest

    def _commit_round(self, t: int, users: Sequence[str], kept: Sequence[str]) -> None:
        name, digest = kept
        self.ledger.commit_round(t, users, name, digest, "released" if users else "empty")


def _load_key(path: Path, header: Mapping[str, Any]) -> NoiseKey:
    try:
        key = NoiseKey.load(path)
    except OSError as error:
        raise ConfigError(f"cannot use noise key {path}: {error.strerror or error}.") from None
    recorded = header.get("key_fingerprint")
    if recorded is not None and recorded != key.fingerprint:
        raise ConfigError(
            f"noise key {path} is not the key of this run: its fingerprint is {key.fingerprint}."
        )
    return key


def read_config(path: Path) -> Config:
    """The configuration stored in a run directory.

    Raises:
        ConfigError: there is none.
    """
    try:
        values = tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"{path} is not a run directory: it has no readable {CONFIG}.") from None
    return Config.from_mapping(values)
