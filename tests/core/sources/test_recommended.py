"""An embedded name brings its authors' sampling defaults; a path to the same file does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from inferplane.config import Config
from inferplane.launch import make_plan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.models
def test_the_default_model_samples_as_its_card_recommends(smollm2_path: Path) -> None:
    named = make_plan(Config.from_flat({"model": "smollm2"})).plan.card.generation_config
    assert (named["temperature"], named["top_p"]) == (0.2, 0.9)
    by_path = make_plan(Config.from_flat({"model": str(smollm2_path)})).plan.card.generation_config
    assert "temperature" not in by_path
