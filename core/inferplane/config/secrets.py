"""Which names mean a secret, and how one is shown; reads no value. Light: stdlib only."""

from __future__ import annotations

HIDDEN = "(set, not shown)"
"""What a record, a table and a message hold in place of a secret."""

_ENDINGS = ("TOKEN", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY", "SECRET_KEY", "SECRET", "PASSWORD", "PASSPHRASE")


def is_secret(name: str) -> bool:
    """True for the name of a variable or an option whose last words mean a secret: HF_TOKEN, acme-api-key."""
    upper = name.upper().replace("-", "_")
    return any(upper == ending or upper.endswith(f"_{ending}") for ending in _ENDINGS)
