"""``python -m ropetool``: the same command line as the script."""

from ropetool.cli.entry import main

main()
