"""Pictures that commands draw."""

from fedmf.cli.plots.design_plot import check_picture, save_plot
from fedmf.cli.plots.stream_plot import draw_stream

__all__ = ["check_picture", "draw_stream", "save_plot"]
