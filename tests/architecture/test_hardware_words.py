"""The core and the contract know no hardware: no such word in an identifier or a string that the program uses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = (REPOSITORY / "core" / "inferplane", REPOSITORY / "platform_api" / "inferplane_api")
MODULES = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))

WORDS = frozenset(
    {"hip", "rocm", "xpu", "tpu", "mps", "npu", "hpu", "nccl", "rccl", "hccl", "oneccl", "nvidia", "nvml", "nvlink"}
    | {"cudnn", "cublas", "hipblas", "miopen", "ascend", "gaudi", "radeon", "geforce", "sycl"}
)
PREFIXES = ("cuda",)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def hardware_words(text: str) -> list[str]:
    """The hardware words among the whole words of a text, split at `_`, case and punctuation."""
    words = (word.lower() for word in _WORD.findall(text))
    return [word for word in words if word in WORDS or word.startswith(PREFIXES)]


def _documentation(tree: ast.AST) -> set[int]:
    """Ids of string nodes that stand alone as a statement: docstrings of modules, classes, functions, attributes."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def names_and_strings(source: str) -> list[tuple[int, str]]:
    """(line, text) of every identifier and every string that is not documentation."""
    tree = ast.parse(source)
    documentation = _documentation(tree)
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.keyword(arg=str(text)):
                found.append((line, text))
            case ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text) | ast.ClassDef(name=text):
                found.append((line, text))
            case ast.alias(name=text, asname=other):
                found.append((line, f"{text} {other or ''}"))
            case ast.ImportFrom(module=str(text)):
                found.append((line, text))
            case ast.Constant(value=str(text)) if id(node) not in documentation:
                found.append((line, text))
            case _:
                pass
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_hardware_words(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    hits = [(line, text) for line, text in names_and_strings(source) if hardware_words(text)]
    assert not hits


@pytest.mark.parametrize(
    "source",
    [
        "use_cuda = 1",
        "device = 'cuda:0'",
        "x.CudaGraph()",
        "torch.cuda.empty_cache()",
        "f(nccl=2)",
        "import hip",
        "'XPU'",
    ],
)
def test_the_check_sees(source: str) -> None:
    if source == "'XPU'":
        source = f"a = {source}"
    assert any(hardware_words(text) for _, text in names_and_strings(source))


@pytest.mark.parametrize("source", ["output = timestamps", "ship = 'chips'", '"""About cuda."""', "x = 1  # cuda"])
def test_the_check_is_not_alarmed_by(source: str) -> None:
    assert not any(hardware_words(text) for _, text in names_and_strings(source))


def test_the_only_exemption_is_one_data_file() -> None:
    data = [
        p for folder in FOLDERS for p in folder.rglob("*") if p.is_file() and p.suffix in {".json", ".toml", ".yaml"}
    ]
    named = [str(p.relative_to(REPOSITORY)) for p in data if hardware_words(p.read_text(encoding="utf-8"))]
    assert named == ["core/inferplane/host/pci_vendors.json"]
