"""Releases of runs and streams: integer sums plus integer noise, committed before they are seen."""
