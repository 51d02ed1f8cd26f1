"""What the documentation says about names is true of the code."""

from __future__ import annotations

import io
import re
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import inferplane.cli.main
from inferplane.cli.bench import ACTIONS
from inferplane.config import Config
from inferplane.config.vllm_flags import vllm_flags
from inferplane.messages import Stats
from inferplane.metrics import Metrics
from inferplane_api.spec import GROUPS, HostInfo, PlatformSpec, ProbeState

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted([REPOSITORY / "README.md", *DOCS.glob("*.md")])
COMMANDS = inferplane.cli.main.COMMANDS


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def block(page: str, language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", text_of(DOCS / page), re.DOTALL)
    return next(code for code in blocks if containing in code)


def test_every_metric_is_documented_and_exists() -> None:
    metrics = Metrics(model_name="m", engine=0, max_model_len=8192, stats=Stats)
    rows = re.findall(r"^\| `([a-z0-9_:]+)` \| (\w+) \|", text_of(DOCS / "metrics.md"), re.MULTILINE)
    documented = {name: kind for name, kind in rows if kind in ("gauge", "counter", "histogram")}
    families = text_string_to_metric_families(metrics.render().decode())
    exported = {each.name + ("_total" if each.type == "counter" else ""): each.type for each in families}
    assert documented == exported


def test_every_entry_point_group_is_documented() -> None:
    documented = set(re.findall(r"`(inferplane\.[a-z_]+)` \|", text_of(DOCS / "plugins.md")))
    assert documented == {*GROUPS, "inferplane.plugins"}


def test_the_example_platform_is_one() -> None:
    names: dict = {}
    exec(block("plugins.md", "python", "PlatformSpec("), names)
    assert isinstance(names["PLATFORM"], PlatformSpec)
    assert names["probe"](HostInfo(os="linux", machine="x86_64")).state is ProbeState.PRESENT
    refusal = names["probe"](HostInfo(os="linux", machine="vax"))
    assert refusal.state is ProbeState.ABSENT
    assert refusal.reasons
    manifest = tomllib.loads(block("plugins.md", "toml", "entry-points"))
    assert manifest["project"]["entry-points"]["inferplane.platforms"] == {
        names["PLATFORM"].name: "example_inferplane.descriptor:PLATFORM"
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_exist(path: Path) -> None:
    consoles = "\n".join(re.findall(r"```console.*?```", text_of(path), re.DOTALL))
    used = set(re.findall(r"\binferplane ([a-z][a-z-]*)\b", consoles))
    used |= set(re.findall(r"`inferplane ([a-z][a-z-]*)", text_of(path)))
    assert used <= set(COMMANDS)


def every_flag() -> set[str]:
    """What the whole help of all commands shows."""
    flags: set[str] = set()
    actions = [*(["plugins", name] for name in ("lock", "new")), *(["bench", name] for name in ACTIONS)]
    for words in [*([command] for command in COMMANDS), *actions]:
        asks = "--help" if words in (["plugins"], ["bench"]) else "--help=all"
        with pytest.raises(SystemExit), redirect_stdout(io.StringIO()) as out:
            inferplane.cli.main.main([*words, asks])
        flags |= set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", out.getvalue()))
    return flags


def test_flags_exist() -> None:
    others = {"--extra-index-url", "--pyargs", "--durations", "--rm", "--time"}  # of pip, pytest and docker
    kit = text_of(REPOSITORY / "platform_api" / "inferplane_api" / "testing" / "plugin.py")
    ours = every_flag() | others | set(re.findall(r'"(--inferplane-[a-z]+)"', kit))
    for path in PAGES:
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text_of(path)))
        vllm = {row.flag for row in vllm_flags()} if path.name == "coming-from-vllm.md" else set()
        assert used <= ours | vllm, path.name


def test_every_setting_is_a_flag() -> None:
    names = {name for section in Config.model_fields.values() for name in section.annotation.model_fields}
    assert {f"--{name.replace('_', '-')}" for name in names} <= every_flag()


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r": ([a-z-]+\.md)$", text_of(REPOSITORY / "mkdocs.yml"), re.MULTILINE))
    assert navigation == {path.name for path in DOCS.glob("*.md")}


def test_every_distribution_is_in_the_readme() -> None:
    names = [
        tomllib.loads(text_of(manifest))["project"]["name"]
        for manifest in [*REPOSITORY.glob("*/pyproject.toml"), *REPOSITORY.glob("plugins/*/pyproject.toml")]
    ]
    assert all(f"| `{name}` |" in text_of(REPOSITORY / "README.md") for name in names)


def test_files_named_in_the_architecture_exist() -> None:
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", text_of(REPOSITORY / "ARCHITECTURE.md")))
    roots = (REPOSITORY, REPOSITORY / "core" / "inferplane", REPOSITORY / "platform_api" / "inferplane_api")
    missing = {name for name in named if not any((root / name).exists() for root in roots)}
    assert not missing


def test_layers_in_the_architecture_are_the_contract() -> None:
    settings = tomllib.loads(text_of(REPOSITORY / "pyproject.toml"))
    contract = next(c for c in settings["tool"]["importlinter"]["contracts"] if c["id"] == "core")
    shown = re.search(r"    cli > .*?log\n", text_of(REPOSITORY / "ARCHITECTURE.md"), re.DOTALL)[0]
    assert [layer.strip() for layer in " ".join(shown.split()).split(">")] == contract["layers"]


def test_every_route_is_documented_and_exists() -> None:
    server = REPOSITORY / "core" / "inferplane" / "server"
    source = text_of(server / "routes.py") + text_of(server / "embeddings.py")
    routes = set(re.findall(r'@app\.(?:get|post)\("([^"{]+?)/?(?:\{|")', source))
    table = text_of(DOCS / "serving.md").partition("## Endpoints")[2].partition("\n\n")[2].partition("\n\n")[0]
    documented = {path.rpartition(" ")[2].partition("/{")[0] for path in re.findall(r"`([^`]*/[^`]*)`", table)}
    assert documented == routes | {"/", "/docs", "/openapi.json"}
