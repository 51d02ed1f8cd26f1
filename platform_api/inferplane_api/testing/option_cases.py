"""Area "options": a platform keeps its word with another value of an option than the default, where one is known."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from inferplane_api.testing.case import Case, Lie, NotTested, require
from inferplane_api.testing.declarations import inspect_plugin
from inferplane_api.testing.memory_cases import check_numbers
from inferplane_api.testing.model_cases import check_option
from inferplane_api.testing.probe_cases import check_probe, probes

if TYPE_CHECKING:
    from inferplane_api.spec import Option
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit


def cases(declarations: Declarations) -> list[Case]:
    """One case an option; those whose declaration allows no other value to be derived are reported as not tested."""
    spec = declarations.spec
    if spec is None or declarations.plugin is not declarations.owner:
        return []
    return [
        Case(
            area="options",
            name=option.name,
            level="full",
            claim=f"{spec.name} declares the option {option.name} ({option.type})",
            run=partial(_check, option),
        )
        for option in spec.options
    ]


def _check(option: Option, kit: Kit) -> None:
    if option.type != "bool":
        raise NotTested(f"the declaration does not say which other {option.type} it may have than {option.default!r}")
    value = not option.default
    what = f"{kit.spec.name} with the option {option.name}={str(value).lower()}"
    try:
        _check_probe(kit, option, value)
        _check_device(kit, option.name, value)
    except Lie as lie:
        raise Lie(f"{what}: {lie}") from None
    except NotTested:
        raise
    except Exception as error:
        raise Lie(f"{what} raises {type(error).__name__}: {' '.join(str(error).split())}") from error


def _check_probe(kit: Kit, option: Option, value: bool) -> None:
    declarations = kit.declarations
    variables = {} if option.variable is None else {option.variable: str(int(value))}
    inspection = inspect_plugin(
        declarations.plugin, declarations.host, probe=True, options={option.name: value}, variables=variables
    )
    answers = [probed for probed in probes(declarations, inspection) if probed.function == kit.spec.probe]
    require(bool(answers), f"probe {kit.spec.probe} was not reached")
    for probed in answers:
        check_probe(probed, kit)


def _check_device(kit: Kit, name: str, value: bool) -> None:
    """The numbers of its memory, and the tiny model where core is installed."""
    _ = kit.device  # raises NotTested without one
    kit.close()  # a process has one platform object at a time
    with kit.other_options({name: value}):
        check_numbers(kit)
    if find_spec("inferplane") is not None:
        check_option(kit, name, value)
