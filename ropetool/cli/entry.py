"""Where the command starts: an interrupt during the imports ends as quietly as one later."""

from __future__ import annotations

import gc
import sys

# Imports make many objects and no garbage: looking for it takes a twentieth of a short command.
OBJECTS_BEFORE_COLLECTION = 50_000


def main() -> None:
    """Import the command line and run it."""
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    try:
        from ropetool.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was written\n")
        sys.exit(130)
    run()
