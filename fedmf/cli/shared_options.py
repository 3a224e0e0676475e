"""The shapes that options of commands share."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import typer

_PICTURES: Final = (".png", ".svg", ".pdf")


def option(default: Any, metavar: str | None, said: str, name: str = "", **more: Any) -> Any:
    """An option with a value, called as its parameter unless it has a name; ``...`` if it must be
    given.
    """
    return typer.Option(default, *([name] if name else []), metavar=metavar, help=said, **more)


def argument(default: Any, metavar: str, said: str) -> Any:
    """A word without a name."""
    return typer.Argument(default, metavar=metavar, help=said)


def flag(name: str, said: str) -> Any:
    """An option without a value, which is off by default."""
    return typer.Option(False, name, help=said)


def _picture(file: Path | None) -> Path | None:
    """Whether a picture can be drawn there, before anything is computed."""
    if file is not None and find_spec("matplotlib") is None:
        raise typer.BadParameter("a picture needs matplotlib; got none. Install fedmf[report].")
    if file is not None and (file.suffix.lower() not in _PICTURES or not file.parent.is_dir()):
        raise typer.BadParameter(
            f"file must end in {', '.join(_PICTURES)} and lie in a folder that exists; got {file}."
        )
    return file


SETS: Final = option(
    [], "KEY=VALUE", "Override a key, e.g. privacy.epsilon=2; repeatable.", "--set"
)
PARAMS: Final = option(
    [], "KEY=VALUE", "Fix a parameter of C, e.g. lambda=0.9. Default: optimised.", "--param"
)
BANDS: Final = option(None, "P", "p, number of bands of C. Default: optimised.", "--bands")
ADJACENCY: Final = option(
    "zero-out",
    None,
    "Neighbouring relation: one user's data become zero, or any other data.",
    "--adjacency",
)
PLOT: Final = option(
    None,
    "FILE",
    "Draw a picture (.png, .svg or .pdf; needs matplotlib).",
    "--plot",
    callback=_picture,
)
FULL: Final = flag("--full", "Show the whole privacy statement.")
