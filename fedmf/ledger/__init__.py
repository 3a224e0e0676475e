"""The record of releases and participations: one SQLite file, and what makes files durable."""
