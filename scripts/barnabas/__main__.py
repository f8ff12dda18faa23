"""The `barnabas` command (also `python -m barnabas`)."""


def main() -> int:
    """Run the command line; the exit code is the return value."""
    from barnabas.net.cli.main import main as run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
