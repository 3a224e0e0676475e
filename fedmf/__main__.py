"""Run the command line with ``python -m fedmf``."""

from fedmf.cli import main

if __name__ == "__main__":
    main()
