"""A program for a test to find on PATH, written in Python."""

import shlex
import sys
from pathlib import Path


def fake_tool(path: Path, text: str) -> None:
    """Write a program that runs the Python text: a line of #! would end at a space in the path of Python."""
    source = path.with_suffix(".py")
    source.write_text(text)
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(source))} "$@"\n')
    path.chmod(0o755)
