"""Run the command line with ``python -m fedmf``."""

if __name__ == "__main__":
    # Processes that this one starts import this file under another name, and need no command line.
    from fedmf.cli import main

    main()
