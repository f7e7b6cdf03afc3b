"""The command line: one file a verb. Results go to stdout, progress to stderr."""

import sys


def main() -> None:
    """Run `glassformer VERB ...`; exit 0, or 1 on failure, 2 on wrong usage, 130 when interrupted."""
    try:
        import rich  # noqa: F401
        from tyro.extras import subcommand_cli_from_dict
    except ImportError:
        sys.exit("the command line needs two more packages: pip install 'glassformer[cli,plot]'")

    from glassformer import __version__
    from glassformer.cli.demo import demo

    if sys.argv[1:] == ["--version"]:
        print(f"glassformer {__version__}")
        return

    try:
        subcommand_cli_from_dict(
            {"demo": demo},
            prog="glassformer",
            description="The Transformer, whole and transparent.",
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, ImportError) as error:
        print(f"glassformer: {error}", file=sys.stderr)
        sys.exit(1)
