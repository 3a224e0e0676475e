"""CIFAR-10 in its binary version, spread over users."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.data.dataset import NumberedUsers
from fedmf.data.memory import DecodedRows, Pixels
from fedmf.data.options import PublicInput, Spread, SpreadOptions

_SHAPE: Final = (3, 32, 32)
_RECORD: Final = 1 + 3 * 32 * 32
_TRAIN: Final = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_TEST: Final = "test_batch.bin"
_MEAN: Final = (0.4914, 0.4822, 0.4465)
_DEVIATION: Final = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Cifar10(SpreadOptions):
    """The 50,000 and 10,000 coloured images of CIFAR-10, from the files of its binary version.

    The five files data_batch_1.bin … are spread over users, test_batch.bin is the test part. A record is a
    byte for the label and 3·32·32 for red, green and blue, each row by row. Pixels are normalised by the
    published mean and deviation of each channel, as constants. The Python version of the files is not read:
    unpickling runs what a file says.

    Args:
        path: of the folder with the files.
        users: 1,000 of 50 images each in pfl's benchmarks.
        dirichlet_alpha: α > 0 of "dirichlet" and "dirichlet-sizes"; 0.1 in pfl's benchmarks.
        test_fraction: not used: the test part is a file of its own.

    References:
        Krizhevsky (2009), "Learning Multiple Layers of Features from Tiny Images"; Hsu, Qi, Brown (2019).
    """

    kind: ClassVar[str] = "cifar-10"
    users: int = 1000
    partition: Spread = "iid"
    dirichlet_alpha: float = 0.1
    path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ValueError(f"path (of the data) must name the folder of {_TEST} and the others; got none.")

    def load(self) -> DecodedRows:
        """See `DatasetOptions.load`."""
        folder = Path(self.path).expanduser()
        train, valid = _pixels(np.concatenate([_records(folder / name) for name in _TRAIN]))
        tests, readable = _pixels(_records(folder / _TEST))
        if not readable.any():
            raise ValueError(f"{_TEST} must hold at least one record with a label; got none in {folder}.")
        owned = self.split(train.labels, np.random.default_rng([self.seed, 0xC1FA]))
        return DecodedRows(
            source=train,
            owned=owned.keeping(valid),
            user_ids=NumberedUsers(self.users),
            test=tests.examples(np.flatnonzero(readable)),
            test_owner="nobody",
            classes=10,
        )

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        mean, deviation = (", ".join(map(str, part)) for part in (_MEAN, _DEVIATION))
        return (
            PublicInput("classes", "10", "the format"),
            PublicInput("shape of an example", "3×32×32", "the format"),
            PublicInput("normalisation", f"(pixel / 255 − ({mean})) / ({deviation})", "published constants"),
        )

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.public_inputs`."""
        by_labels = self.partition in ("dirichlet", "shards")
        made = "computed from all labels" if by_labels else "made from the number of records"
        dealt = f"{made} and the public seed: who owns which record is taken as public"
        changed = {
            "sizes of users": PublicInput("sizes of users", f"partition {self.partition!r}", dealt),
            "partition": PublicInput("partition", self.partition, dealt),
            "test part": PublicInput("test part", _TEST, "a file that no user of the run owns"),
        }
        return tuple(changed.get(entry.name, entry) for entry in super().public_inputs())


def _records(path: Path) -> NDArray[np.uint8]:
    """The records of a file, shape (records, 3,073)."""
    if not path.is_file():
        raise ValueError(
            f"path must name a folder with {path.name} of CIFAR-10's binary version; got {path.parent}. "
            "It comes as cifar-10-binary.tar.gz; the Python version is not read."
        )
    content = np.fromfile(path, dtype=np.uint8)
    if not content.size or content.size % _RECORD:
        raise ValueError(
            f"{path.name} must consist of records of {_RECORD:,} bytes; got {content.size:,} bytes."
        )
    return content.reshape(-1, _RECORD)


def _pixels(records: NDArray[np.uint8]) -> tuple[Pixels, NDArray[np.bool_]]:
    """Images, and which of them have a label; the others are dealt as of class 0 and then nobody's."""
    labels = records[:, 0].astype(np.int64)
    valid = labels < 10
    images = records[:, 1:].reshape(-1, *_SHAPE)
    return Pixels(images, np.where(valid, labels, 0), _MEAN, _DEVIATION), valid
