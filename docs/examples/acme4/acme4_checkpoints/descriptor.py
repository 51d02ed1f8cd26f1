"""What this package offers, as data; imports nothing heavy."""

from __future__ import annotations

from inferplane_api.spec import WeightFormatSpec

FORMAT = WeightFormatSpec(
    id="acme4.folder",
    load="acme4_checkpoints.format:Acme4Format",
    name="acme4",
    quant_methods=("acme4",),
)
