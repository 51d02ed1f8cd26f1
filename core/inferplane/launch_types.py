"""What the composition root hands to a front end; holds no logic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inferplane.cells import Cells
    from inferplane.client.interface import EngineClient
    from inferplane.config import Config
    from inferplane.plan.types import Plan
    from inferplane.text.chat_template import ChatTemplate
    from inferplane.text.generation_defaults import SamplingDefaults
    from inferplane.text.tokenizer import Tokenizer


class Prepared(NamedTuple):
    """Everything that is known before an engine starts."""

    config: Config
    plan: Plan
    tokenizer: Tokenizer | None
    """None where the checkpoint has none: token ids in, token ids out."""
    chat_template: ChatTemplate | None
    defaults: SamplingDefaults
    served_names: tuple[str, ...]
    timeline: list[tuple[str, float]]
    """(phase, seconds), the front end's part."""


class FrontEnd(NamedTuple):
    """What several API processes are started with."""

    num_processes: int
    plan: Plan
    config: bytes
    """What the user said, as JSON."""
    provenance: str
    timeline: list[tuple[str, float]]
    """(phase, seconds) of what came before them."""


class Service(NamedTuple):
    """A prepared model and the engine that runs it: what the server's routes work with."""

    prepared: Prepared
    client: EngineClient
    cells: Cells | None = None
    """What this process counts beside what others do; None where it is alone."""
