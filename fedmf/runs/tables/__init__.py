"""Configuration tables: the values of a run as text, and the files that are generated from their
fields.
"""
