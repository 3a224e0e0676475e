"""The command line: its commands, one-line errors and exit codes (`fedmf.cli.exit_codes`)."""

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

from fedmf.cli.account_command import account, export, predict
from fedmf.cli.configuration_options import init, options
from fedmf.cli.design_command import design
from fedmf.cli.exit_codes import EXIT_CODES, USAGE, exit_code
from fedmf.cli.interruption import interruption
from fedmf.cli.log import log
from fedmf.cli.schema_command import schema
from fedmf.cli.simulate_command import simulate
from fedmf.cli.stream_command import stream
from fedmf.cli.sweep_command import sweep
from fedmf.errors import PlatformError
from fedmf.version import __version__

#: New objects, and collections of the younger generation, after which garbage is collected.
_RARELY: Final = (100_000, 20, 50)
#: The errors of the click that typer uses: the package, or in newer versions a copy of its own.
_CLICK: Final[Any] = sys.modules[typer.BadParameter.__module__]

_EXIT_CODES: Final = "\n\n".join(f"{code}: {meaning}" for code, meaning in EXIT_CODES.items())

application = typer.Typer(
    name="fedmf",
    help="User-level differentially private federated learning with correlated noise.",
    epilog=(
        "First run: fedmf simulate configs/digits.toml\n\n"
        "Your own table, text or Flower app: fedmf init --list\n\n"
        "Your own model, an app, a stream: examples in README.md and docs/tutorials.\n\n"
        f"Exit codes:\n\n{_EXIT_CODES}"
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
#: The commands by panel, in the order of the help.
_COMMANDS: Final[dict[str, dict[str, Callable[..., None]]]] = {
    "Train": {"simulate": simulate, "sweep": sweep, "predict": predict},
    "Plan": {"design": design},
    "Streams": {"stream": stream, "schema": schema},
    "Privacy report": {"account": account, "export": export},
    "Setup": {"init": init, "options": options},
}
for _group, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        _lines = inspect.getdoc(_command) or ""
        _paragraphs = re.sub(r"(?<!\n)\n(?!\n)", " ", _lines)  # each paragraph becomes one line
        application.command(_name, help=_paragraphs, rich_help_panel=_group)(_command)


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

    Characters that a terminal cannot show, such as ε where the locale is C, are written as escapes,
    so that they do not end a run. Garbage is collected rarely while modules are loaded, since their
    objects stay, and not at the end.
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
        return log.fail(str(PlatformError()), USAGE)
    try:
        with interruption.watching(), log.opened():
            code = program().main(arguments, prog_name="fedmf", standalone_mode=False)
        if interruption.number:  # typer and Ray turn the signal into an exit code
            return log.fail(*interruption.message_and_code)
        if isinstance(code, int):
            return code
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return log.fail(*interruption.message_and_code)
    except _CLICK.NoArgsIsHelpError as error:
        typer.echo(error.format_message())
        return USAGE
    except _CLICK.ClickException as error:
        return log.fail(error.format_message(), USAGE)
    except MemoryError as error:
        advice = "not enough memory for this request; use fewer users, rounds or parameters."
        return log.fail(advice, exit_code(error))
    except (ValueError, ImportError, RuntimeError, OSError) as error:
        return log.fail(str(error), exit_code(error))


def program() -> Any:
    """Return the program of typer, with the help of arguments.

    With click 8.5, typer 0.20 loses the help of arguments, so it is set here.
    """
    program: Any = typer.main.get_command(application)
    for commands in _COMMANDS.values():
        for name, command in commands.items():
            declared = inspect.signature(command).parameters
            for parameter in program.commands[name].params:
                if isinstance(parameter, TyperArgument):
                    parameter.help = declared[str(parameter.name)].default.help
    return program
