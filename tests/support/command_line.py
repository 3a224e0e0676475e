"""What the commands show."""

import pytest


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The error that a command showed, which is one line, and all that it showed."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("fedmf: ")
    return captured.err
