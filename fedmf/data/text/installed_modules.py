"""The modules of Python's standard library, as installed with the interpreter that runs."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from fedmf.data.text.module_list import MODULES

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
