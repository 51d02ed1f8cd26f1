"""Makes the files that the engines read, once: the same weights in the form that each wants.

    python benchmarks/cpu/prepare.py --home DIR [--python openvino=DIR/openvino/bin/python]

    DIR/models/SmolLM2-135M-Instruct.Q4_1.gguf   as published (a link)
    DIR/models/gemma-3-270m-q4_k_m.gguf          as published (a link)
    DIR/models/smollm2-bf16/                     safetensors: ours, vLLM, transformers
    DIR/models/smollm2-bf16.gguf                 llama.cpp
    DIR/models/smollm2-openvino/                 OpenVINO's IR; needs optimum-intel in OpenVINO's environment

What exists is left alone. Runs in our development environment, which has transformers and gguf.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

BFLOAT16_FILE_TYPE = 32
"""`general.file_type` of a GGUF file that is mostly bfloat16."""
OFFLINE = Path(__file__).parent.parent / "offline.py"


def link_published(name: str, file_name: str, models: Path) -> Path:
    """The published file, fetched to the cache if need be."""
    from inferplane.config import Config
    from inferplane.sources.resolve import resolve_source

    link = models / file_name
    if not link.exists():
        link.symlink_to(resolve_source(Config.from_flat({"model": name}).model).path)
    return link


def write_bf16_gguf(source: Path, target: Path) -> None:
    """Every matrix in bfloat16, vectors in float32 as llama.cpp wants them; the metadata as it was."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(source)
    unfinished = target.with_suffix(".unfinished")
    writer = GGUFWriter(unfinished, reader.fields["general.architecture"].contents())
    for name, value in reader.fields.items():
        # The writer makes the header and the architecture by itself.
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = value.types[0]
        item_kind = value.types[-1] if kind == GGUFValueType.ARRAY else None
        contents = BFLOAT16_FILE_TYPE if name == "general.file_type" else value.contents()
        writer.add_key_value(name, contents, kind, sub_type=item_kind)
    for tensor in reader.tensors:
        dense = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        dense = dense.reshape([int(size) for size in reversed(tensor.shape)])
        if dense.ndim == 1:
            writer.add_tensor(tensor.name, dense)
        else:
            rounded = quantize(dense, GGMLQuantizationType.BF16)
            writer.add_tensor(tensor.name, rounded, raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(target)


def write_openvino(python: Path, source: Path, target: Path) -> None:
    """bfloat16 weights stay as they are: optimum-intel compresses none when told "fp32" for a bfloat16 checkpoint."""
    unfinished = target.with_name(f"{target.name}.unfinished")
    command = [python.parent / "optimum-cli", "export", "openvino", "--model", source]
    command += ["--task", "text-generation-with-past", "--weight-format", "fp16", unfinished]
    subprocess.run([str(part) for part in command], check=True)
    unfinished.rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--home", type=Path, default=Path("~/.cache/inferplane/benchmarks/cpu").expanduser())
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="only openvino is of use")
    arguments = parser.parse_args()
    models: Path = arguments.home / "models"
    models.mkdir(parents=True, exist_ok=True)
    quantized = link_published("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", models)
    link_published("gemma3-270m", "gemma-3-270m-q4_k_m.gguf", models)
    folder = models / "smollm2-bf16"
    if not folder.exists():
        # Printed is the folder's path.
        subprocess.run([sys.executable, str(OFFLINE), "--child", "prepare", "--cache", str(models)], check=True)
    if not (models / "smollm2-bf16.gguf").exists():
        write_bf16_gguf(quantized, models / "smollm2-bf16.gguf")
    pythons = dict(each.split("=", 1) for each in arguments.python)
    python = Path(pythons.get("openvino", arguments.home / "openvino" / "bin" / "python"))
    if (models / "smollm2-openvino").exists():
        pass
    elif (python.parent / "optimum-cli").exists():
        write_openvino(python, folder, models / "smollm2-openvino")
    else:
        print(f"skipped smollm2-openvino: there is no optimum-cli beside {python}", file=sys.stderr)
    for path in sorted(models.iterdir()):
        print(path)


if __name__ == "__main__":
    main()
