"""The documented configuration is the configuration: nothing undescribed, no drift, no flag that does not exist."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from inferplane.config import Config

REPOSITORY = Path(__file__).resolve().parents[2]
FIELDS = {
    f"{section}.{name}": field
    for section, info in Config.model_fields.items()
    for name, field in info.annotation.model_fields.items()
}
PAGES = sorted([REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md")])


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_config", REPOSITORY / "docs" / "generate_config.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_a_description_and_a_default(name: str) -> None:
    field = FIELDS[name]
    assert field.description
    assert field.description.endswith(".")
    assert not field.is_required()


def test_the_page_is_the_schema(generator: ModuleType) -> None:
    assert generator.PAGE.read_text(encoding="utf-8") == generator.render(), "run python docs/generate_config.py"


def test_the_page_shows_every_setting(generator: ModuleType) -> None:
    text = generator.render()
    assert all(f"`--{name.partition('.')[2].replace('_', '-')}`" in text for name in FIELDS)


def test_names_are_unique_over_sections() -> None:
    names = [name.partition(".")[2] for name in FIELDS]
    assert len(names) == len(set(names))


def test_the_tables_for_vllms_users_are_the_code(generator: ModuleType) -> None:
    page = generator.VLLM_PAGE.read_text(encoding="utf-8")
    assert page == generator.render_vllm(page), "run python docs/generate_config.py"
    assert "| `--gpu-memory-utilization` | differs |" in page
    assert "| `--num-gpu-blocks-override` | `--num-pages-override` |" in page
