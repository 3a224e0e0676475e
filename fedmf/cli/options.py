"""The shapes that options of commands share."""

from __future__ import annotations

from typing import Any, Final

import typer


def option(default: Any, metavar: str | None, said: str, name: str = "", **more: Any) -> Any:
    """An option with a value, called as its parameter unless it has a name; ``...`` if it must be given."""
    return typer.Option(default, *([name] if name else []), metavar=metavar, help=said, **more)


def flag(name: str, said: str) -> Any:
    """An option without a value, which is off by default."""
    return typer.Option(False, name, help=said)


SETS: Final = option([], "KEY=VALUE", "Override a key, e.g. privacy.epsilon=2; repeatable.", "--set")
PARAMS: Final = option(
    [], "KEY=VALUE", "Fix a parameter of C, e.g. lambda=0.9. Default: optimised.", "--param"
)
BANDS: Final = option(None, "P", "p, number of bands of C. Default: optimised.", "--bands")
ADJACENCY: Final = option("zero-out", None, "What one user's data become in the other world.", "--adjacency")
FULL: Final = flag("--full", "Show the whole privacy statement.")
