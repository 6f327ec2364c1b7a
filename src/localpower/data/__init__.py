"""Data of users, of all kinds, as pieces of rows; `register` adds a format of files."""

from localpower.data.blocks import Block
from localpower.data.detect import register

__all__ = ["Block", "register"]
