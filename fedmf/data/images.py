"""Images: the digits that ship with scikit-learn, and files in the format of MNIST.

Both need no declarations: their classes, shapes and pixel levels are public.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.dataset import InMemoryDataset, NumberedUsers
from fedmf.data.dataset_options import PublicInput, Spread, SpreadOptions, in_words
from fedmf.data.partitions import hold_out
from fedmf.values import Field

#: The beginning of IDX files of unsigned bytes; the next byte is the number of sizes.
_MAGIC: Final = b"\x00\x00\x08"


@dataclass(frozen=True)
class _Images(SpreadOptions):
    """Images of ten classes; abstract."""

    partition: Spread = "iid"
    input_shape: Annotated[
        tuple[int, ...],
        Field("shape of an example: 1,8,8 for convolutions; default: vectors", ge=1),
    ] = ()
    pixels: ClassVar[int]
    levels: ClassVar[int]

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        shape = in_words(self.input_shape or (self.pixels,))
        return (
            PublicInput("classes", "10", "the data set"),
            PublicInput("shape of an example", shape, "configuration"),
            PublicInput("normalization", f"pixels / {self.levels}", "fixed"),
        )

    def _dataset(
        self,
        train: tuple[NDArray[Any], NDArray[Any]],
        test: tuple[NDArray[Any], NDArray[Any]],
        rng: np.random.Generator,
    ) -> InMemoryDataset:
        """Return a data set of images and labels of both parts, the first spread over users."""
        x, y = self._tensors(*train)
        test_x, test_y = self._tensors(*test)
        return InMemoryDataset(
            features=x,
            labels=y,
            owned=self.split(y.numpy(), rng),
            user_ids=NumberedUsers(self.users),
            test_features=test_x,
            test_labels=test_y,
            classes=10,
        )

    def _tensors(
        self, images: NDArray[Any], labels: NDArray[Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features in [0, 1] and class numbers."""
        shape = self.input_shape or (self.pixels,)
        entries = math.prod(images.shape[1:])
        if math.prod(shape) != entries:
            raise ValueError(
                f"input-shape must multiply to the {entries} entries of an example; got {shape}."
            )
        scaled = images.astype(np.float32) / np.float32(self.levels)
        x = torch.from_numpy(scaled).reshape(-1, *shape)
        return x, torch.from_numpy(labels.astype(np.int64))


@dataclass(frozen=True)
class Digits(_Images):
    """The 1,797 handwritten 8×8 digits that ship inside scikit-learn, split over users.

    Features are scaled to [0, 1]. There may be as many users as training examples.

    References:
        E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.

    >>> Digits(users=10, partition="dirichlet").load().test_features.shape
    torch.Size([359, 64])
    """

    kind: ClassVar[str] = "digits"
    pixels: ClassVar[int] = 64
    levels: ClassVar[int] = 16

    def load(self) -> InMemoryDataset:
        spec: Any = importlib.util.find_spec("sklearn")  # which itself is slow to import
        if spec is None or spec.origin is None:
            raise ValueError("dataset 'digits' needs the extra: pip install 'fedmf[data]'.")
        table = np.loadtxt(
            Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=","
        )
        rng = np.random.default_rng([self.seed, 0xD161])
        images = table[:, :-1]
        labels = table[:, -1]
        test, train = hold_out(len(table), self.test_fraction, rng, "examples")
        return self._dataset((images[train], labels[train]), (images[test], labels[test]), rng)


@dataclass(frozen=True)
class Idx(_Images):
    """MNIST, Fashion-MNIST or another folder of four IDX files, packed (``.gz``) or not.

    Training images are spread over users; the test files, which belong to no user, are the test
    part. Features are scaled to [0, 1].
    """

    kind: ClassVar[str] = "idx"
    path: Annotated[
        str, Field("folder with train-images-idx3-ubyte, t10k-images-idx3-ubyte and their labels")
    ] = ""
    pixels: ClassVar[int] = 784
    levels: ClassVar[int] = 255

    def load(self) -> InMemoryDataset:
        train = self._read("train")
        test = self._read("t10k")
        return self._dataset(train, test, np.random.default_rng([self.seed, 0x1D8]))

    def _read(self, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Read images and labels of a part.

        Raises:
            ValueError: a file is missing or broken, or the two do not fit together.
        """
        images = _idx(self.path, f"{part}-images-idx3-ubyte")
        labels = _idx(self.path, f"{part}-labels-idx1-ubyte")
        fits = len(images) == len(labels) and images.ndim >= 2 and labels.ndim == 1
        if not fits or labels.max(initial=0) > 9:
            raise ValueError(
                f"path must hold as many images as labels 0 to 9; got {len(images)} and"
                f" {len(labels)} in {self.path}."
            )
        return images, labels


def _idx(folder: str, name: str) -> NDArray[np.uint8]:
    """Read the array in a file.

    Raises:
        ValueError: the file is missing or broken, or holds something else.
    """
    path = Path(folder).expanduser() / name
    if not path.is_file():
        path = path.with_name(f"{name}.gz")
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"path must hold {name} or {name}.gz; got {path}: {error}.") from None
    if not content.startswith(_MAGIC) or len(content) < 4:
        raise ValueError(f"{path} must be an IDX file of unsigned bytes; got something else.")
    axes = content[3]
    sizes = np.frombuffer(content[4 : 4 + 4 * axes], dtype=">u4").astype(np.int64).tolist()
    if not axes or len(sizes) < axes or len(content) != 4 + 4 * axes + math.prod(sizes):
        raise ValueError(f"{path} must be an IDX file of unsigned bytes; got something else.")
    return np.frombuffer(content[4 + 4 * axes :], dtype=np.uint8).reshape(sizes)
