"""What was released, once: one SQLite file, and who took part in which round."""
