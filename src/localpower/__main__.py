"""``python -m localpower``."""

from localpower.cli import entry

entry()
