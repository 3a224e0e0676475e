"""Commands and exit codes: 0 done, 1 a run that had to stop, 2 bad input, 130 or 143 a signal;
errors are one line.
"""

from __future__ import annotations

import gc
import inspect
import io
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer
from typer.core import TyperArgument

from fedmf.cli.account_command import account, export
from fedmf.cli.configuration_options import init, options
from fedmf.cli.design_command import design
from fedmf.cli.interruption import interruption
from fedmf.cli.schema_command import schema
from fedmf.cli.simulate_command import simulate
from fedmf.cli.stream_command import stream
from fedmf.cli.sweep_command import sweep
from fedmf.errors import PlatformError, one_line
from fedmf.version import __version__

#: New objects, and collections of the younger generation, after which garbage is looked for.
_RARELY: Final = (100_000, 20, 50)
#: The errors of the click that typer uses: the package, or in newer versions a copy of its own.
_CLICK: Final[Any] = sys.modules[typer.BadParameter.__module__]

application = typer.Typer(
    name="fedmf",
    help="User-level differentially private federated learning with correlated noise.",
    epilog=(
        "First run: fedmf simulate configs/digits.toml\n\n"
        "Your own table, text or Flower app: fedmf init --list\n\n"
        "Your own model, an app, a stream: examples in README.md and docs/tutorials."
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
#: In the order of the help, by what they are for.
_COMMANDS: Final[dict[str, dict[str, Callable[..., None]]]] = {
    "Train": {"simulate": simulate, "sweep": sweep},
    "Plan": {"design": design},
    "Streams": {"stream": stream, "schema": schema},
    "Privacy report": {"account": account, "export": export},
    "Setup": {"init": init, "options": options},
}
for _group, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        _said = re.sub(
            r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(_command) or ""
        )  # a line for each paragraph
        application.command(_name, help=_said, rich_help_panel=_group)(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedmf {__version__}")
        raise typer.Exit()


@application.callback()
def _options(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the version and exit.",
        is_eager=True,
        callback=_show_version,
    ),
) -> None:
    """Options of the program itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process; never shows a traceback for bad input.

    What a terminal cannot show, such as ε where the locale is C, is written as an escape: a run
    does not end for it. Garbage is collected rarely while modules are loaded, since their objects
    stay, and not at the end.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    gc.set_threshold(*_RARELY)
    code = run(arguments)
    gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if sys.platform == "win32":
        return _fail(str(PlatformError()), 2)
    try:
        with interruption.watching():
            code = program().main(arguments, prog_name="fedmf", standalone_mode=False)
        if interruption.number:  # typer makes an exit code of it, and so does Ray
            return _fail(*interruption.ending)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return _fail(*interruption.ending)
    except _CLICK.NoArgsIsHelpError as error:
        typer.echo(error.format_message())
        return 2
    except _CLICK.ClickException as error:
        return _fail(error.format_message(), 2)
    except (ValueError, ImportError) as error:
        return _fail(str(error), 2)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except MemoryError:
        return _fail(
            "not enough memory for this request; use fewer users, rounds or parameters.", 2
        )
    except (RuntimeError, OSError) as error:
        return _fail(str(error), 1)


def program() -> Any:
    """The commands as typer makes them, with the help of arguments, which click 8.5 takes from
    typer 0.20.
    """
    program: Any = typer.main.get_command(application)
    for name, callback in (
        (name, one) for group in _COMMANDS.values() for name, one in group.items()
    ):
        declared = inspect.signature(callback).parameters
        for parameter in program.commands[name].params:
            if isinstance(parameter, TyperArgument):
                parameter.help = declared[str(parameter.name)].default.help
    return program


def _fail(message: str, code: int) -> int:
    typer.echo(f"fedmf: {one_line(message)}", err=True)
    return code
