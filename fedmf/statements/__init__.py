"""Privacy statements of a run, of a stream, or of several together, for people and programs."""
