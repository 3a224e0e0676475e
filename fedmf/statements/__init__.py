"""What a run, a stream, or several together guarantee, for people and for programs."""
