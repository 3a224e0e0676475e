"""Code tokens: a language task of real texts that every machine has, with people of very different sizes."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import ClassVar, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.memory import InMemoryDataset
from fedmf.data.module_list import MODULES
from fedmf.data.options import PublicInput, in_words
from fedmf.data.partitions import Partition
from fedmf.data.tokens import SequenceOptions, Vocabulary, evenly, next_tokens, public_vocabulary

#: SHA-256 of the listed modules, by release of CPython as published on python.org.
PINNED: Final[dict[str, str]] = {
    "3.11.7": "fa0ee3e89f329ad6492501b04f43198da8c2c523f1e68601837e3fcc85fd56d2",
    "3.12.1": "4a2905fd9329e1db093fd9b77f37fca8c319d372ed236e1c197147e16e89e586",
    "3.13.0": "045e7c96a3f53ff0643684e6f319dc72b8505a2c7256f640a751286c3ff10061",
}


@dataclass(frozen=True)
class StandardLibrary:
    """The listed modules that an interpreter has.

    Args:
        version: of Python.
        texts: the source of each module by its dotted name, in the order of the list.
    """

    version: str
    texts: dict[str, bytes]

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hexadecimal of names and sources."""
        digest = hashlib.sha256()
        for name, text in self.texts.items():
            digest.update(f"{name} {len(text)}\n".encode() + text)
        return digest.hexdigest()

    @property
    def pinned(self) -> bool:
        """Whether these are the sources of that release, bit for bit."""
        return PINNED.get(self.version) == self.digest

    def __str__(self) -> str:
        """In words, for lists of public inputs."""
        known = "the pinned digest" if self.pinned else "not pinned for this installation"
        return (
            f"{len(self.texts)} modules of Python {self.version}'s standard library, SHA-256 {self.digest} "
            f"({known})"
        )


@cache
def standard_library() -> StandardLibrary:
    """That of the running interpreter; read once.

    Raises:
        ValueError: its sources are not there.
    """
    return read_modules(Path(sysconfig.get_paths()["stdlib"]), platform.python_version())


def read_modules(folder: Path, version: str) -> StandardLibrary:
    """The listed modules that a folder holds; whatever else stands there is not looked at.

    Raises:
        ValueError: there are none.
    """
    texts: dict[str, bytes] = {}
    for path in MODULES:
        file = folder / path
        if file.is_file():
            texts[path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = file.read_bytes()
    if not texts:
        raise ValueError(
            f"the sources of Python's standard library must be in {folder}; got none of the listed modules. "
            "Some installations have compiled files only."
        )
    return StandardLibrary(version, texts)


@dataclass(frozen=True)
class CodeTokens(SequenceOptions):
    """Modules of Python's standard library: each is a user who owns its own source, token by token.

    The listed modules are shuffled by the seed and dealt into a public part, a held-out part and the users,
    in this order, so that the first two do not depend on how many users there are. A module is cut into
    sequences of T tokens (`next_tokens`); it stays whole with its user, so sizes are what they are.

    Args:
        users: how many modules are users.
        partition: "natural": a module is a user.
        test_fraction: share of the modules held out for evaluation: nobody of the run.
        public_fraction: share of the modules that are public, in (0, 1): vocabularies are made from them, and
            models may be trained on them without privacy.
        part: "users", or "public": the users are modules of the public part, to train without privacy what
            others start from; vocabulary and held-out part are the same.
        vocabulary: "bytes" (257 numbers), or "bpe" (made from the public part; extra ``lm``).

    >>> data = CodeTokens(users=100, length=32, most_sequences=4).load()
    >>> data.test_features.shape[1:], data.vocabulary, data.test_owner
    (torch.Size([32]), 257, 'held-out users')
    """

    kind: ClassVar[str] = "code-tokens"
    users: int = 256
    partition: Literal["natural"] = "natural"
    public_fraction: float = 0.2
    part: Literal["users", "public"] = "users"
    vocabulary: Literal["bytes", "bpe"] = "bytes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.public_fraction < 1 - self.test_fraction:
            raise ValueError(
                f"public_fraction must lie in (0, 1 − test_fraction); got {self.public_fraction}."
            )

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        source = "the public modules" if self.vocabulary == "bpe" else "fixed"
        return (
            PublicInput("vocabulary", str(self.tokens()), source),
            PublicInput("shape of an example", in_words((self.length,)), "configuration"),
            PublicInput("normalisation", "none: token numbers", "fixed"),
        )

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.public_inputs`; who is a user is public, and so is published software."""
        library, dealt = standard_library(), "dealt by the public seed"
        return (
            PublicInput("users", str(self.users), "configuration"),
            PublicInput("user ids", "names of modules", dealt),
            PublicInput(
                "sizes of users", "tokens of each module", "a user's size decides its own update only"
            ),
            *self.example_inputs(),
            PublicInput("partition", self.partition, "a module is a user"),
            PublicInput("test part", "modules that are no users of the run", dealt),
            PublicInput("texts", str(library), "published software, PSF licence"),
        )

    def tokens(self) -> Vocabulary:
        """The vocabulary: fixed, or made from the public part.

        Raises:
            ValueError: the sources are not there, or the library tokenizers is not.
        """
        texts = standard_library().texts
        public = tuple(texts[name] for name in self.public_modules())
        return public_vocabulary(self.vocabulary, None, public, self.vocabulary_size, lower_case=False)

    def public_modules(self) -> tuple[str, ...]:
        """Names of the public part."""
        return self._dealt()[0]

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`."""
        public, held_out, others = self._dealt()
        people = public if self.part == "public" else others
        if self.users > len(people):
            raise ValueError(
                f"U (users) must be at most {len(people)}, how many modules are left for part "
                f"{self.part!r}; got {self.users}."
            )
        people, vocabulary = people[: self.users], self.tokens()
        features, labels, edges = _sequences(people, vocabulary, self.length, self.most_sequences)
        test_features, test_labels, _ = _sequences(held_out, vocabulary, self.length, None)
        chosen = torch.from_numpy(evenly(len(test_features), self.most_test_sequences))
        return InMemoryDataset(
            features=features,
            labels=labels,
            owned=Partition(np.arange(len(features)), edges),
            user_ids=people,
            test_features=test_features[chosen],
            test_labels=test_labels[chosen],
            vocabulary=vocabulary.size,
            test_owner="held-out users",
        )

    def _dealt(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The public, the held-out and the other modules."""
        names = list(standard_library().texts)
        order = np.random.default_rng([self.seed, 0xC0DE]).permutation(len(names))
        shuffled = tuple(names[place] for place in order)
        public = max(1, round(self.public_fraction * len(names)))
        others = public + max(1, round(self.test_fraction * len(names)))
        return shuffled[:public], shuffled[public:others], shuffled[others:]


def _sequences(
    modules: Sequence[str], vocabulary: Vocabulary, length: int, most: int | None
) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Features and labels of some modules, one after the other, and where each begins and the last ends."""
    texts = standard_library().texts
    parts = [next_tokens(vocabulary.encode(texts[name]), length, most) for name in modules]
    edges = np.cumsum([0, *(len(features) for features, _ in parts)])
    features, labels = (torch.from_numpy(np.concatenate(side)) for side in zip(*parts, strict=True))
    return features, labels, edges
