"""One logger for the process; knows nothing about what is logged."""

from __future__ import annotations

import logging
import os
import sys

VARIABLE = "INFERPLANE_LOG_LEVEL"
_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def get_logger(name: str) -> logging.Logger:
    """The logger of a module below "inferplane"."""
    return logging.getLogger(name if name.startswith("inferplane") else f"inferplane.{name}")


def configure_logging(level: str | None = None, *, process: str = "") -> None:
    """Log to stderr, once per process. The level is the argument, INFERPLANE_LOG_LEVEL or INFO."""
    chosen = (level or os.environ.get(VARIABLE) or "INFO").upper()
    root = logging.getLogger("inferplane")
    root.setLevel(chosen)
    root.propagate = False
    handler = logging.StreamHandler(sys.stderr)
    prefix = f"[{process}] " if process else ""
    handler.setFormatter(logging.Formatter(prefix + _FORMAT, datefmt="%H:%M:%S"))
    root.handlers[:] = [handler]
