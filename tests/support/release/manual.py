"""The manual page of the command line, from its help.

python -m tests.support.release.manual > fedmf.1
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperOption

from fedmf.addresses import linked
from fedmf.cli.app import application, program
from fedmf.version import SOFTWARE

_EXIT = "0 done, 1 a run that had to stop, 2 bad input, 130 or 143 a signal. Errors are one line."


def manual() -> str:
    """The page in roff; the same program gives the same text."""
    commands = getattr(program(), "commands", {})
    lines = [f'.TH FEDMF 1 "" "{SOFTWARE}" "User Commands"', ".nh", ".ad l", ".SH NAME"]
    lines += [rf"fedmf \- {_text(str(application.info.help)).rstrip('.')}"]
    lines += [".SH SYNOPSIS", r"\fBfedmf\fP \fICOMMAND\fP [\fIARGUMENTS\fP]", ".SH COMMANDS"]
    for name, command in commands.items():
        lines += _section(name, command)
    lines += [".SH EXIT STATUS", _text(_EXIT), ".SH SEE ALSO", _text(linked("docs/start.md"))]
    return "\n".join(lines) + "\n"


def _section(name: str, command: Any) -> Iterator[str]:
    """What a command does, and each of its arguments and options."""
    context = command.context_class(command, info_name=name)
    shown = [option for option in command.params if not getattr(option, "hidden", False)]
    arguments = [option.make_metavar(context) for option in shown if isinstance(option, TyperArgument)]
    yield f".SS {_text(' '.join(['fedmf', name, *arguments, '[OPTIONS]']))}"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield _text(paragraph)
        yield ".PP"
    for option in shown:
        names = ", ".join((*option.opts, *option.secondary_opts))
        if isinstance(option, TyperArgument):
            names = option.make_metavar(context)
        elif isinstance(option, TyperOption) and not option.is_flag:
            names = f"{names} {option.make_metavar(context)}"
        yield ".TP"
        yield rf"\fB{_text(names)}\fP"
        yield _text(str(getattr(option, "help", None) or ""))


def _text(words: str) -> str:
    """Words as roff prints them: nothing is a request, and a hyphen is the one that is typed."""
    line = " ".join(words.replace("\b", "").split()).replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{line}" if line.startswith((".", "'")) else line


if __name__ == "__main__":
    print(manual(), end="")
