"""Reports on runs: figures of their records as one page that loads nothing."""

from fedmf.report.page import render_report
from fedmf.report.reading import RunFigures, read_run

__all__ = [
    "RunFigures",
    "read_run",
    "render_report",
]
