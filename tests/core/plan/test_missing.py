"""What is said of plugins that would have helped and were left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplane.config import Config
from inferplane.errors import InferplaneError
from inferplane.launch import make_plan
from inferplane.plan.missing import with_left_out
from inferplane.plugins.modes import DISABLED
from inferplane.plugins.records import LeftOut
from inferplane_api.spec import Reason

GGUF = LeftOut(
    distribution="inferplane-quantization",
    version="0.1.0",
    names=("gguf.file", "other"),
    kinds=("quantization", "kernels"),
    reason=Reason(code=DISABLED, hint="by --disable-plugins"),
)
ERROR = InferplaneError("no installed format reads x.gguf", code="checkpoint.unknown_format", remedy="pip install it")


def test_an_installed_package_is_not_to_be_installed() -> None:
    told = with_left_out(ERROR, [GGUF])
    assert told.message.endswith(
        "gguf.file is installed (inferplane-quantization 0.1.0) and left out: by --disable-plugins"
    )
    assert told.remedy == "take inferplane-quantization off --disable-plugins"
    assert told.code == ERROR.code


def test_other_kinds_and_other_errors_stay_as_they_are() -> None:
    model = InferplaneError("nobody has it", code="model.unknown")
    assert with_left_out(model, [GGUF]) is model
    assert with_left_out(ERROR, []) is ERROR
    path = InferplaneError("no such file", code="source.no_such_path")
    assert with_left_out(path, [GGUF]) is path


def test_a_start_names_the_package_that_would_read_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    config = Config.from_flat({"model": str(file), "disable_plugins": ("inferplane-quantization",)})
    with pytest.raises(InferplaneError, match=r"gguf\.file is installed .* left out: by --disable-plugins") as caught:
        make_plan(config)
    assert caught.value.remedy == "take inferplane-quantization off --disable-plugins"
