"""What a terminal shows of a run while it goes on."""

from fedmf.cli.view.run_view import RunView

__all__ = [
    "RunView",
]
