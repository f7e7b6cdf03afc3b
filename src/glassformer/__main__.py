"""Run the command line: `python -m glassformer` is the same as the command `glassformer`."""

from glassformer.cli import main

main()
