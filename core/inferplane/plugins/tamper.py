"""Tells which names of the core and of the contract were rebound. The conformance kit uses the same watch."""

from inferplane_api.internal.tamper import Change, Watch

__all__ = ["Change", "Watch"]
