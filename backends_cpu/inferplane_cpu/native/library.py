"""Finds and opens the compiled kernels and picks their instruction set; imports no torch, computes nothing."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import inferplane_cpu
from inferplane_api.errors import InvalidValue, Unsupported

ISA_VARIABLE = "INFERPLANE_CPU_ISA"

_FILE = "_native.so"
_I32, _I64, _PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "ip_select_isa": (ctypes.c_char_p, [ctypes.c_char_p]),
    "ip_isa_names": (ctypes.c_char_p, []),
    "ip_pool_create": (_PTR, [_I32, _PTR, _I32]),
    "ip_pool_destroy": (None, [_PTR]),
    "ip_run": (None, [_PTR, _PTR, _I32]),
    "ip_packed_bytes": (_I64, [_I32, _I32, _I32]),
    "ip_quant_packed_bytes": (_I64, [_I32, _I32, _I32]),
}


def library_path() -> Path | None:
    """Where the compiled kernels lie; None where the package was built without a compiler."""
    # An editable install has the sources in one folder and what was compiled in another.
    files = (Path(folder) / _FILE for folder in inferplane_cpu.__path__)
    return next((file for file in files if file.is_file()), None)


@lru_cache(maxsize=1)
def open_library() -> ctypes.CDLL:
    """The library, opened once a process. Raises Unsupported where there is none or it does not load."""
    path = library_path()
    if path is None:
        raise Unsupported(
            "inferplane-cpu was built without its native kernels",
            remedy="install g++, then `pip install --force-reinstall --no-binary inferplane-cpu inferplane-cpu`",
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unsupported(
            f"the native kernels do not load: {error}", remedy="reinstall inferplane-cpu for this machine"
        ) from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def instruction_sets() -> tuple[str, ...]:
    """What the library has for this processor, best first. Raises Unsupported without a library."""
    return tuple(open_library().ip_isa_names().decode().split(","))


def select_instruction_set(name: str | None) -> str:
    """Use one from now on, None: the best. Returns its name. Raises InvalidValue for one that this processor lacks."""
    chosen: bytes | None = open_library().ip_select_isa(None if name is None else name.encode())
    if chosen is None:
        raise InvalidValue(
            ISA_VARIABLE, name, "is no instruction set of this processor", remedy=f"use {', '.join(instruction_sets())}"
        )
    return chosen.decode()
