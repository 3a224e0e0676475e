"""Clipping to an exact bound, and integer sums of clipped updates."""
