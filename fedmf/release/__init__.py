"""Release: integer sums plus integer noise, committed before anybody sees them, for runs and for
streams.
"""
