"""The lists that have to be kept by hand agree with the folders; every module says what it is; sizes stay readable."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
MEMBERS = sorted(
    folder
    for pattern in SETTINGS["tool"]["uv"]["workspace"]["members"]
    for folder in REPOSITORY.glob(pattern)
    if (folder / "pyproject.toml").exists()
)
IMPORT_NAMES = {member: next(p.parent.name for p in sorted(member.glob("*/__init__.py"))) for member in MEMBERS}
MODULES = sorted(path for member in MEMBERS for path in (member / IMPORT_NAMES[member]).rglob("*.py"))
DOCUMENTS = sorted(
    path
    for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("*/README.md")]
    if path.name != "CHANGELOG.md"
)

LINES_PER_MODULE = 450
"""About 400; a longer one needs its reason here."""
LONGER_WITH_REASON: dict[str, int] = {
    # every descriptor of the contract side by side, half of it the sentences that say what a field means
    "platform_api/inferplane_api/spec.py": 500,
}


def manifest(member: Path) -> dict:
    return tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_the_import_contract_lists_every_member() -> None:
    linter = SETTINGS["tool"]["importlinter"]
    layers = next(contract for contract in linter["contracts"] if contract["id"] == "distributions")["layers"]
    listed = {name.strip() for layer in layers for name in layer.split("|")}
    assert listed == set(IMPORT_NAMES.values()) == set(linter["root_packages"])
    assert layers[-1] == "inferplane_api"


def test_the_requirements_list_every_member() -> None:
    lines = [
        line
        for name in ("requirements.txt", "requirements-dev.txt")
        for line in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    ]
    editable = {line.removeprefix("-e ./") for line in lines if line.startswith("-e ")}
    assert editable == {relative(member) for member in MEMBERS}


def test_the_workspace_sources_list_every_member() -> None:
    assert set(SETTINGS["tool"]["uv"]["sources"]) == {manifest(member)["project"]["name"] for member in MEMBERS}


@pytest.mark.parametrize("member", MEMBERS, ids=relative)
def test_members_are_built_alike(member: Path) -> None:
    data = manifest(member)
    compiled = (member / "CMakeLists.txt").exists()
    assert data["build-system"]["build-backend"] == ("scikit_build_core.build" if compiled else "hatchling.build")
    assert data["project"]["requires-python"] == ">=3.11"
    assert data["project"]["license"] == "Apache-2.0"
    assert (member / IMPORT_NAMES[member] / "py.typed").exists()
    if member.name not in {"platform_api", "core"}:
        assert any(re.match(r"inferplane-api\b.*<", text) for text in data["project"]["dependencies"])


def test_versions_are_in_lockstep() -> None:
    import inferplane
    import inferplane_api

    versions = {manifest(member)["project"]["name"]: manifest(member)["project"]["version"] for member in MEMBERS}
    assert versions.pop("inferplane-api") == inferplane_api.API_VERSION
    assert set(versions.values()) == {inferplane.__version__}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_says_what_it_is(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring
    assert len(docstring) > 20
    assert "TODO" not in docstring


def test_modules_stay_readable() -> None:
    sizes = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    for member in MEMBERS:
        own = [size for name, size in sizes.items() if name.startswith(relative(member) + "/")]
        print(f"{relative(member):24} {len(own):4} modules {sum(own):7} lines, longest {max(own)}")
    too_long = {name: size for name, size in sizes.items() if size > LONGER_WITH_REASON.get(name, LINES_PER_MODULE)}
    assert not too_long
    assert all(sizes.get(name, 0) > LINES_PER_MODULE for name in LONGER_WITH_REASON), "an exemption is no longer needed"


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if "make " in p.read_text(encoding="utf-8")], ids=relative)
def test_documented_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    used = set(re.findall(r"(?:^|[`\s])make ([a-z][a-z-]*)", code))
    assert used <= targets


def _links() -> list[tuple[Path, str]]:
    return [
        (path, target)
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        if not target.startswith(("http://", "https://"))
    ]


def test_links_between_documents_lead_somewhere() -> None:
    broken = [(relative(path), target) for path, target in _links() if not (path.parent / target).exists()]
    assert not broken
