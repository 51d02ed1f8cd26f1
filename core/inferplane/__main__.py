"""`python -m inferplane`."""

from inferplane.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
