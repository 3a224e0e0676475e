"""Tables with the columns of public data sets, drawn from a seed, where their library keeps what it loaded.

An app asks for a data set by its name on the hub. Offline, the library takes the copy that it loaded before;
`keep` puts one there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np


@dataclass(frozen=True)
class Pictures:
    """Grey (2 axes) or coloured (3) pictures that are brighter the larger the label is."""

    shape: tuple[int, ...]

    def draw(self, labels: np.ndarray, generator: np.random.Generator) -> list[Any]:
        """One value a label."""
        levels = 30 + 20 * (labels % 10)
        return [generator.integers(0, 40, self.shape, dtype=np.uint8) + np.uint8(level) for level in levels]


@dataclass(frozen=True)
class Numbers:
    """Numbers around the label, whole or not."""

    scale: float
    whole: bool = False

    def draw(self, labels: np.ndarray, generator: np.random.Generator) -> list[Any]:
        """One value a label."""
        drawn = self.scale * (1.0 + labels + 0.3 * generator.standard_normal(len(labels)))
        return [int(value) for value in drawn] if self.whole else [float(value) for value in drawn]


@dataclass(frozen=True)
class Words:
    """So many words of a small vocabulary, one of them the label's own."""

    vocabulary: tuple[str, ...]
    count: int = 1

    def draw(self, labels: np.ndarray, generator: np.random.Generator) -> list[Any]:
        """One value a label."""
        rows = generator.choice(self.vocabulary, (len(labels), self.count))
        if self.count > 1:
            rows[:, 0] = [self.vocabulary[int(label)] for label in labels]
        return [" ".join(row) for row in rows]


@dataclass(frozen=True)
class Labels:
    """The label, as a class of the data set or as text."""

    names: tuple[str, ...]
    text: bool = False

    def draw(self, labels: np.ndarray, generator: np.random.Generator) -> list[Any]:
        """One value a label."""
        return [self.names[int(label)] if self.text else int(label) for label in labels]

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.names)


Column = Pictures | Numbers | Words | Labels

_DIGITS: Final = tuple(str(digit) for digit in range(10))
_VOCABULARY: Final = (
    "bad",
    "good",
    "dull",
    "bright",
    "slow",
    "quick",
    "long",
    "short",
    "film",
    "plot",
    "actor",
)
_KINDS: Final = ("a", "b", "c")

#: Columns in their order, by the name that apps use.
TABLES: Final[Mapping[str, Mapping[str, Column]]] = {
    "uoft-cs/cifar10": {"img": Pictures((32, 32, 3)), "label": Labels(_DIGITS)},
    "zalando-datasets/fashion_mnist": {"image": Pictures((28, 28)), "label": Labels(_DIGITS)},
    "ylecun/mnist": {"image": Pictures((28, 28)), "label": Labels(_DIGITS)},
    "hitorilabs/iris": {
        "petal_length": Numbers(1.5),
        "petal_width": Numbers(0.5),
        "sepal_length": Numbers(2.0),
        "sepal_width": Numbers(1.0),
        "species": Labels(("setosa", "versicolor", "virginica")),
    },
    "scikit-learn/adult-census-income": {
        "age": Numbers(20.0, whole=True),
        "workclass": Words(_KINDS),
        "fnlwgt": Numbers(90_000.0, whole=True),
        "education": Words(_KINDS),
        "education.num": Numbers(5.0, whole=True),
        "marital.status": Words(_KINDS),
        "occupation": Words(_KINDS),
        "relationship": Words(_KINDS),
        "race": Words(_KINDS),
        "sex": Words(_KINDS),
        "capital.gain": Numbers(500.0, whole=True),
        "capital.loss": Numbers(50.0, whole=True),
        "hours.per.week": Numbers(20.0, whole=True),
        "native.country": Words(_KINDS),
        "income": Labels(("<=50K", ">50K"), text=True),
    },
    "stanfordnlp/imdb": {"text": Words(_VOCABULARY, count=12), "label": Labels(("neg", "pos"))},
}


def rows(name: str, count: int, seed: int) -> dict[str, list[Any]]:
    """Rows of a table, labels in turn, so that every part of it has all of them.

    Args:
        name: a key of `TABLES`.
        count: how many.
        seed: of the draw.

    Returns:
        Values by column.
    """
    columns, generator = TABLES[name], np.random.default_rng(seed)
    classes = next(column.classes for column in columns.values() if isinstance(column, Labels))
    labels = np.arange(count) % classes
    return {key: column.draw(labels, generator) for key, column in columns.items()}


def keep(name: str, cache: Path, parts: Mapping[str, int]) -> None:
    """Put a table where the library looks for a data set of that name.

    Args:
        name: a key of `TABLES`.
        cache: folder of data sets that were loaded.
        parts: how many rows each part (train, test) has.
    """
    import datasets
    import pyarrow as pa

    owner, _, short = name.rpartition("/")
    folder = cache / f"{owner}___{short}" / "default" / "0.0.0" / "made-up"
    folder.mkdir(parents=True, exist_ok=True)
    features = datasets.Features({key: _feature(column) for key, column in TABLES[name].items()})
    splits = datasets.SplitDict(dataset_name=short)
    for seed, (part, count) in enumerate(parts.items()):
        table = datasets.Dataset.from_dict(rows(name, count, seed), features=features).data.table
        file = folder / f"{short}-{part}.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        splits.add(datasets.SplitInfo(part, table.nbytes, count, dataset_name=short))
    info = datasets.DatasetInfo(
        features=features, splits=splits, config_name="default", dataset_name=short, version="0.0.0"
    )
    info.write_to_directory(str(folder))


def _feature(column: Column) -> Any:
    import datasets

    match column:
        case Pictures():
            return datasets.Image()
        case Numbers(whole=whole):
            return datasets.Value("int64" if whole else "float64")
        case Labels(text=False, names=names):
            return datasets.ClassLabel(names=list(names))
        case _:
            return datasets.Value("string")


def tiny_bert(folder: Path) -> None:
    """A BERT with a hidden size of 16 and a vocabulary of `_VOCABULARY`, as a folder of a model."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_VOCABULARY]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(words), num_labels=2, **size)
    BertForSequenceClassification(config).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make up data sets and a model, offline.")
    parser.add_argument("folder", type=Path, help="the hub's home, HF_HOME of the apps")
    parser.add_argument("names", nargs="*", help="names of data sets, or tiny-bert")
    parser.add_argument("--rows", type=int, default=320, help="of the training part")
    options = parser.parse_args()
    for name in options.names:
        if name == "tiny-bert":
            tiny_bert(options.folder / name)
        else:
            keep(name, options.folder / "datasets", {"train": options.rows, "test": options.rows // 5})


if __name__ == "__main__":
    main()
