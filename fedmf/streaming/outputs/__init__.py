"""Releases as people and programs read them, and where they go."""

from fedmf.streaming.outputs.places import Output, Returned, open_output, output_name, shape_of
from fedmf.streaming.outputs.private_release import PrivateRelease
from fedmf.streaming.outputs.renderer import NO_DENSITY, Renderer
from fedmf.streaming.outputs.shapes import SHAPES, MeanPoints, mean_points, wide_columns

__all__ = [
    "NO_DENSITY",
    "SHAPES",
    "MeanPoints",
    "Output",
    "PrivateRelease",
    "Renderer",
    "Returned",
    "mean_points",
    "open_output",
    "output_name",
    "shape_of",
    "wide_columns",
]
