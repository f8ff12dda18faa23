"""The `barnabas` command (also `python -m barnabas`)."""


def main() -> int:
    """Run the command line; the exit code is the return value."""
    try:
        from barnabas.net.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130  # Ctrl-C during the imports: as ExitCode.INTERRUPTED, whose module may not be there yet


if __name__ == "__main__":
    raise SystemExit(main())
