"""Releases as people and programs read them, and where they go."""

from fedmf.streaming.outputs.places import Output, Returned, open_output, output_name
from fedmf.streaming.outputs.points import mean_points
from fedmf.streaming.outputs.renderer import Renderer
from fedmf.streaming.outputs.shapes import SHAPES

__all__ = ["SHAPES", "Output", "Renderer", "Returned", "mean_points", "open_output", "output_name"]
