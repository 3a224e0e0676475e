"""Configuration tables: the values of a run as text, and what is generated from their fields."""
