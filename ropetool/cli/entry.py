"""Where the command starts: an interrupt during the imports ends as quietly as one later."""

from __future__ import annotations

import sys


def main() -> None:
    """Import the command line and run it."""
    try:
        from ropetool.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was written\n")
        sys.exit(130)
    run()
