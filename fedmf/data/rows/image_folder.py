"""Folders of images: a folder for each user, or a list that says whose each file is."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.memory import DecodedRows
from fedmf.data.rows.cells import TextColumn, name_columns
from fedmf.data.rows.labelled_rows import LabelledRows

#: Endings of the files that are read.
SUFFIXES: Final = (".png", ".jpg", ".jpeg")
_FORMATS: Final = ("PNG", "JPEG")
_MODES: Final = {1: "L", 3: "RGB"}
#: Most pixels, and most bytes, of a file that is decoded: a small file can hold a huge picture.
_MOST_PIXELS: Final = 1 << 26
_MOST_BYTES: Final = 1 << 26
_MOST_TESTS: Final = 10_000


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


#: Image files with the names of their classes and users.
_Listed: TypeAlias = tuple[list[Path], TextColumn, TextColumn]


@dataclass(frozen=True)
class ImageFolder(LabelledRows):
    """PNG and JPEG files, decoded when their owner is asked for, spread over users.

    Without ``index`` the folder says whose a file is: ``path/user/class/file.png``, or
    ``path/class/file.png`` where ``user_column`` is empty. With it, a row for each file does. Pixels become
    numbers in [0, 1], channels first. A file that is missing, no image, or of other sides is one that cannot
    be read: its owner's update is zero. At most 10,000 images of the test part are used.

    Args:
        path: of the folder.
        index: a CSV or Parquet file with the columns ``feature_columns`` (paths relative to the folder),
            ``label_column`` and ``user_column``; empty for folders by user and class.
        feature_columns: the one column of the index with the paths.
        user_column: of the index; without one, whether there are folders of users.
        input_shape: (1, height, width) for grey, (3, height, width) for coloured images; others are
            converted. Empty: that of the first image, which a private run may not.
        other_sides: images of other sides than input_shape are "unreadable", or "scaled" to it (bilinear).
    """

    kind: ClassVar[str] = "image-folder"
    feature_columns: tuple[str, ...] = ("path",)
    user_column: str = "user"
    index: str = ""
    other_sides: Literal["unreadable", "scaled"] = "unreadable"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input_shape:
            check_image_shape(self.input_shape)
        if len(self.feature_columns) != 1:
            raise ValueError(
                f"feature_columns must name the one column of paths with dataset {self.kind!r}; got "
                f"{self.feature_columns!r}."
            )

    @property
    def normalisation(self) -> str:
        """See `LabelledRows.normalisation`."""
        return "pixels / 255, in float32"

    @property
    def test_part(self) -> str:
        """See `RowOptions.test_part`."""
        return f"{super().test_part}; at most {_MOST_TESTS:,} of them"

    def load(self) -> DecodedRows:
        """See `DatasetOptions.load`; images of training rows are not opened."""
        check_pillow()
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            raise ValueError(f"path must name a folder of images; got {self.path}.")
        people = self.users_on_roster(self.holds_out_users)
        paths, label, user = (
            self._indexed(folder, Path(self.index).expanduser())
            if self.index
            else self._found(folder, people)
        )
        if not paths:
            raise ValueError(
                f"path must hold at least one image ({', '.join(SUFFIXES)}); got none in {folder}."
            )
        classes = self.classes or label.ordered(as_numbers=True)
        if len(classes) < 2:
            raise ValueError(f"images must have at least two labels; got {', '.join(classes)}.")
        labels = label.among(classes)
        users = (people if self.user_column else ()) or user.ordered(as_numbers=False)
        owner = user.among(users)
        rng = np.random.default_rng([self.seed, 0x14A6])
        dealt = self.dealt(owner, users, labels, rng)
        shape = check_image_shape(self.input_shape) if self.input_shape else shape_of_first(paths)
        source = ImageFiles(paths, labels, shape, self.other_sides == "scaled")
        tests = np.flatnonzero(dealt.tests & (labels >= 0))
        features, answers = source.examples(np.sort(rng.permutation(tests)[:_MOST_TESTS]))
        readable = torch.isfinite(features).flatten(1).all(dim=1)
        if not readable.any():
            raise ValueError(f"the test part must have an image that can be read; got none of {folder}.")
        return DecodedRows(
            source=source,
            owned=dealt.owned.keeping(labels >= 0),
            user_ids=dealt.user_ids,
            test=(features[readable], answers[readable]),
            test_owner=self.test_owner,
            classes=len(classes),
        )

    def _found(self, folder: Path, people: Sequence[str]) -> _Listed:
        """The files of folders by user and class, or by class."""
        rows: list[tuple[Path, str, str]] = []
        if self.user_column:
            for user in people or _folders(folder):
                home = folder / user
                if home.parent == folder and home.is_dir():  # no id of a roster leads out of the folder
                    rows += [(file, label, user) for label in _folders(home) for file in _files(home / label)]
        else:
            rows = [(file, label, "") for label in _folders(folder) for file in _files(folder / label)]
        paths = [path for path, _, _ in rows]
        labels = TextColumn.of_names([label.encode() for _, label, _ in rows])
        if not self.user_column:
            return paths, labels, TextColumn.without_names(len(paths))
        return paths, labels, TextColumn.of_names([user.encode() for _, _, user in rows])

    def _indexed(self, folder: Path, index: Path) -> _Listed:
        """The rows of the index; a path that leads out of the folder is that of no file."""
        keys = {"feature_columns": self.feature_columns[0], "label_column": self.label_column}
        keys |= {"user_column": self.user_column} if self.user_column else {}
        read = name_columns(index, list(keys.items()), "index")
        files, labels, *users = (TextColumn.of(read[name]) for name in keys.values())
        inside = [_inside(folder, value) for value in files.values]
        paths = [inside[code] if code >= 0 else folder for code in files.codes]
        return paths, labels, users[0] if users else TextColumn.without_names(len(paths))


def _folders(folder: Path) -> list[str]:
    """Names of the folders within, in order."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def _files(folder: Path) -> list[Path]:
    """Image files of a folder, in the order of their names."""
    return sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES)


def _inside(folder: Path, value: str) -> Path:
    """The path of a file of the folder; the folder itself, which is no image, for one outside."""
    path = Path(value)
    return folder if path.is_absolute() or ".." in path.parts or "\0" in value else folder / path
