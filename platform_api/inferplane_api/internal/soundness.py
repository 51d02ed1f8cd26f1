"""Values of a descriptor that no rule of selection could work with; a type error was found when it was decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from inferplane_api.internal.inventory import admits
from inferplane_api.spec import AttentionSpec, KernelSpec, LogitsProcessorSpec, PlatformSpec, Reason

if TYPE_CHECKING:
    import msgspec

HIGHEST_SCORE = 99


def unsound(spec: msgspec.Struct) -> Reason | None:
    """The first value that makes no sense, or None."""
    if isinstance(spec, PlatformSpec):
        try:
            SpecifierSet(spec.requires_torch)
        except InvalidSpecifier:
            return _refusal("requires_torch", "a version specifier, for example >=2.9", spec.requires_torch)
    if isinstance(spec, AttentionSpec):
        for field, sizes in (("head_sizes", spec.head_sizes), ("page_sizes", spec.page_sizes)):
            if sizes.multiple_of < 1:
                return _refusal(f"{field}.multiple_of", "1 or more", sizes.multiple_of)
        if not spec.layouts:
            return _refusal("layouts", "one or more", "none")
    if isinstance(spec, (AttentionSpec, KernelSpec)) and not 0 <= spec.score <= HIGHEST_SCORE:
        return _refusal("score", f"0 to {HIGHEST_SCORE}", spec.score)
    if isinstance(spec, LogitsProcessorSpec) and not spec.parameters:
        return _refusal("parameters", "one or more", "none")
    return None


def torch_mismatch(specifier: str | None, version: str | None, builds: tuple[str, ...] = ()) -> Reason | None:
    """Why the installed torch does not fit: a version out of range; or a build that the platform does not run with,
    where torch names its build."""
    build = (version or "").partition("+")[2]
    if not admits(specifier, version):
        hint = f"pip install 'torch{specifier}'"
        return Reason(code="torch.range", field="torch", want=specifier or "any", have=version or "", hint=hint)
    if not builds or not build or build.startswith(builds):
        return None
    hint = f"install a build of torch whose version ends in {' or '.join(f'+{each}*' for each in builds)}"
    return Reason(code="torch.build", field="torch build", want=", ".join(builds), have=build, hint=hint)


def _refusal(field: str, want: str, have: object) -> Reason:
    return Reason(code="plugin.descriptor", field=field, want=want, have=str(have))
