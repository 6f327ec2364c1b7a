"""The command line."""

from localpower.cli.commands import entry, main

__all__ = ["entry", "main"]
