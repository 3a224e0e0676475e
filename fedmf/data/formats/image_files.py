"""PNG and JPEG files as features, each decoded on its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Endings of the files that are read.
SUFFIXES: Final = (".png", ".jpg", ".jpeg")
_FORMATS: Final = ("PNG", "JPEG")
_MODES: Final = {1: "L", 3: "RGB"}
#: Most pixels, and most bytes, of a file that is decoded: a small file can hold a huge picture.
_MOST_PIXELS: Final = 1 << 26
_MOST_BYTES: Final = 1 << 26


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files of one shape, decoded on demand.

    Args:
        paths: of the files, by row.
        labels: class of each.
        shape: channels (1 for grey, 3 for colours), height, width.
        resize: whether an image of other sides is scaled to them (bilinear), or cannot be read.
    """

    paths: Sequence[Path]
    labels: NDArray[np.int64]
    shape: tuple[int, int, int]
    resize: bool

    def examples(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Pixels in [0, 1]; see `RowSource.examples`."""
        block = np.full((rows.size, *self.shape), np.nan, dtype=np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a file makes a decoder say is not for the screen
            for place, row in zip(block, rows, strict=True):
                pixels = self._pixels(self.paths[row])
                if pixels is not None:
                    place[...] = pixels
        return torch.from_numpy(block), torch.from_numpy(self.labels[rows])

    def _pixels(self, path: Path) -> NDArray[np.float32] | None:
        """None for what is no image of the shape."""
        from PIL import Image

        channels, height, width = self.shape
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                return None
            with Image.open(path, formats=_FORMATS) as image:
                other = image.size != (width, height)
                if (other and not self.resize) or image.size[0] * image.size[1] > _MOST_PIXELS:
                    return None
                plain = image.convert(_MODES[channels])
                if other:
                    plain = plain.resize((width, height), Image.Resampling.BILINEAR)
                values = np.asarray(plain, dtype=np.float32) / np.float32(255)
        except Exception:  # whatever a decoder raises, it concerns one file
            return None
        return np.moveaxis(np.atleast_3d(values), -1, 0)


def check_image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Refuse what is no shape of grey or coloured images."""
    if len(shape) != 3 or shape[0] not in _MODES:
        raise ValueError(
            f"input_shape must be (1, height, width) for grey images or (3, height, width); got {shape}."
        )
    return shape


def shape_of_first(paths: Sequence[Path]) -> tuple[int, int, int]:
    """Of the first file that is an image: for runs that declare no shape.

    Raises:
        ValueError: none is.
    """
    from PIL import Image

    for path in paths:
        try:
            with Image.open(path, formats=_FORMATS) as image:
                return (1 if image.mode in ("1", "L") else 3, image.size[1], image.size[0])
        except Exception:  # whatever a decoder raises, it concerns one file
            continue
    raise ValueError("path must hold at least one image that can be read; got none.")


def check_pillow() -> None:
    """Refuse to read images where Pillow is not installed."""
    if find_spec("PIL") is None:
        raise ValueError("dataset 'image-folder' needs Pillow: pip install pillow, or 'fedmf[data]'.")
