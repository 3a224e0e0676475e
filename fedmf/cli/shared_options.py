"""Options that several commands have, and the three forms of an option.

The forms give typer options, arguments and flags in one line each, so that the head of a command
reads as its manual.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import typer

_PICTURES: Final = (".png", ".svg", ".pdf")


def option(default: Any, metavar: str | None, text: str, *names: str, **more: Any) -> Any:
    """Return an option with a value.

    Args:
        default: its value if it is not given; ``...`` if it must be given.
        metavar: the name of its value in the help.
        text: the help.
        names: names of the option; by default, that of its parameter.
        more: further arguments of ``typer.Option``.
    """
    return typer.Option(default, *names, metavar=metavar, help=text, **more)


def argument(default: Any, metavar: str, text: str) -> Any:
    """Return an argument, which has a place in the command line and no name."""
    return typer.Argument(default, metavar=metavar, help=text)


def flag(name: str, text: str, **more: Any) -> Any:
    """Return an option without a value, which is off by default."""
    return typer.Option(False, name, help=text, **more)


def _check_picture(file: Path | None) -> Path | None:
    """Reject a picture that cannot be drawn, before anything is computed."""
    if file is None:
        return None
    if find_spec("matplotlib") is None:
        raise typer.BadParameter("a picture needs matplotlib; got none. Install fedmf[report].")
    if file.suffix.lower() not in _PICTURES or not file.parent.is_dir():
        raise typer.BadParameter(
            f"file must end in {', '.join(_PICTURES)} and lie in a folder that exists; got {file}."
        )
    return file


def params_option(panel: str | None = None) -> Any:
    """Return the option for parameters of the strategy matrix C."""
    return option(
        [],
        "KEY=VALUE",
        "Fix a parameter of C, e.g. lambda=0.9. Default: optimized.",
        "--param",
        rich_help_panel=panel,
    )


def bands_option(panel: str | None = None) -> Any:
    """Return the option for the number of bands of the strategy matrix C."""
    text = "p, number of bands of C. Default: optimized."
    return option(None, "P", text, "--bands", rich_help_panel=panel)


def adjacency_option(panel: str | None = None) -> Any:
    """Return the option for the neighboring relation."""
    return option(
        "zero-out",
        "RELATION",
        "Neighboring relation: zero-out (one user's data become zero) or replace-one (any other"
        " data).",
        "--adjacency",
        rich_help_panel=panel,
    )


SETS: Final = option(
    [], "KEY=VALUE", "Override a key, e.g. privacy.epsilon=2; repeatable.", "--set"
)
PLOT: Final = option(
    None,
    "FILE",
    "Draw a picture (.png, .svg or .pdf; needs matplotlib).",
    "--plot",
    callback=_check_picture,
)
LOG_FORMAT: Final = option(
    "text",
    None,
    "Format of standard error; json: one object per line, for a log collector.",
    "--log-format",
)
FULL: Final = flag("--full", "Show the whole privacy statement.")
