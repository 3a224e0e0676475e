"""A run's header: written from its plan, and computed again when it is read."""

from fedmf.runs.recorded.header import evaluation_header, file_digest, header_of, recorded_header

__all__ = ["evaluation_header", "file_digest", "header_of", "recorded_header"]
