"""Small faults of the package, drawn by a seed, and the tests that have to notice each of them.

``python -m tests.mutants draw`` made ``mutants.json``; ``python -m tests.mutants run`` tells what is caught.
"""
