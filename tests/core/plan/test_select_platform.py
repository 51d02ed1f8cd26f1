"""The selection table, row by row: what runs, what refuses, and what the message must name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from inferplane.errors import InferplaneError
from inferplane.host.hardware import load_hardware_table
from inferplane.plan.select_platform import PlatformChoice, Situation, select_platform
from inferplane.plugins.records import DISABLED, NOT_EXPOSED, NOT_LISTED, NOT_LOCKED, LeftOut
from inferplane_api.spec import Reason

DISPLAY, ACCELERATOR = 0x03, 0x12
NVIDIA, ACME = 0x10DE, 0x1E52

DRIVER = Reason(code="driver.version", field="driver", want=">=5", have="4", hint="update the driver to 5")
HIDDEN = Reason(code=NOT_EXPOSED, field="device nodes", want="/dev/acme*", hint="--device /dev/acme")


class Platform(NamedTuple):
    name: str
    state: str = "PRESENT"
    options: Mapping[str, Any] = MappingProxyType({})


def acme(state: str, **options: Any) -> Platform:
    return Platform("acme", state, {"tier": 5, "vendor": ACME, **options})


CPU = Platform("cpu", "PRESENT", {"tier": 1, "distribution": "inferplane-cpu"})
REFERENCE = Platform("reference", "PRESENT", {"tier": 0, "distribution": "inferplane"})
SECOND = Platform("beta", "PRESENT", {"tier": 5})
NO_BUS: tuple[tuple[int, int], ...] = ()


class Row(NamedTuple):
    """A row of the table: a situation and its two outcomes; a list of texts is an error that holds them all."""

    situation: str
    platforms: tuple[Platform, ...]
    bus: tuple[tuple[int, int], ...]
    installed: tuple[str, ...]
    automatic: str | list[str]
    asked: dict[str, str | list[str]]
    warnings: tuple[str, ...] = ()
    """Each is in one warning of the automatic choice, and there are no others."""
    left_out: tuple[LeftOut, ...] = ()


TABLE = [
    Row("present, highest tier", (REFERENCE, CPU, acme("PRESENT")), NO_BUS, (), "acme", {"acme": "acme", "cpu": "cpu"}),
    Row("only the lowest", (REFERENCE, CPU), NO_BUS, (), "cpu", {"cpu": "cpu", "CPU": "cpu", "reference": "reference"}),
    Row(
        "two present in the highest tier",
        (REFERENCE, CPU, acme("PRESENT"), SECOND),
        NO_BUS,
        (),
        ["'acme' (acme-dist 1.2)", "'beta' (beta-dist 1.2)", "--platform acme or --platform beta"],
        {"acme": "acme", "beta": "beta", "cpu": "cpu"},
    ),
    *(
        Row(
            f"better one {state} with evidence",
            (REFERENCE, CPU, acme(state, on_host=True, reasons=(DRIVER,))),
            ((ACME, ACCELERATOR),),
            (),
            [
                f"platform 'acme' of acme-dist 1.2 is {state}: driver.version: driver wants >=5, has 4",
                "its hardware is on this host",
                "remedy: ",
                "--platform cpu",
            ],
            {
                "acme": [f"acme-dist 1.2 is {state}", "driver.version", "--platform cpu"],
                "cpu": "cpu",
            },
        )
        for state in ("BROKEN", "INCOMPATIBLE")
    ),
    *(
        Row(
            f"better one {state} without evidence",
            (REFERENCE, CPU, acme(state, reasons=(DRIVER,))),
            NO_BUS,
            (),
            "cpu",
            {"acme": [f"acme-dist 1.2 is {state}", "driver.version"], "cpu": "cpu"},
            (f"platform 'acme' of acme-dist 1.2 is {state}: driver.version",),
        )
        for state in ("BROKEN", "INCOMPATIBLE")
    ),
    Row(
        "better one unreadable with evidence",
        (CPU, acme("BROKEN", on_host=True, described=False)),
        NO_BUS,
        (),
        ["acme-dist 1.2 is BROKEN", "--platform cpu", "pip install --upgrade --force-reinstall --no-deps acme-dist"],
        {"cpu": "cpu"},
    ),
    Row(
        "one of the same tier broken with evidence",
        (CPU, SECOND, acme("BROKEN", on_host=True)),
        NO_BUS,
        (),
        "beta",
        {"acme": ["acme-dist 1.2 is BROKEN"]},
        ("acme-dist 1.2 is BROKEN",),
    ),
    Row(
        "a lesser one broken",
        (acme("PRESENT"), Platform("cpu", "BROKEN", {"tier": 1, "on_host": True})),
        NO_BUS,
        (),
        "acme",
        {"cpu": ["cpu-dist 1.2 is BROKEN", "--platform acme"]},
        ("cpu-dist 1.2 is BROKEN",),
    ),
    Row(
        "on the bus without device nodes",
        (CPU, acme("ABSENT", on_host=True, reasons=(HIDDEN,))),
        ((ACME, ACCELERATOR),),
        (),
        "cpu",
        {"acme": ["acme-dist 1.2 is ABSENT", NOT_EXPOSED, "--device /dev/acme"], "cpu": "cpu"},
        ("--device /dev/acme",),
    ),
    Row("absent", (CPU, acme("ABSENT")), NO_BUS, (), "cpu", {"acme": ["acme-dist 1.2 is ABSENT", "fix acme"]}),
    Row(
        "visible and not installed",
        (CPU,),
        ((NVIDIA, DISPLAY),),
        (),
        "cpu",
        {
            "cuda": ["platform 'cuda' is not installed", "NVIDIA GPU is visible", "pip install inferplane-cuda"],
            "rocm": ["platform 'rocm' is not installed", "pip install inferplane-rocm"],
        },
        ("NVIDIA GPU is visible on this host and not used: pip install inferplane-cuda",),
    ),
    Row(
        "visible and not installed, and nothing else",
        (REFERENCE,),
        ((NVIDIA, DISPLAY),),
        ("inferplane",),
        ["no platform can run", "NVIDIA GPU is visible", "pip install inferplane-cuda or pip install inferplane-cpu"],
        {"reference": "reference"},
    ),
    Row(
        "visible, another package claims it", (CPU, acme("ABSENT", vendor=NVIDIA)), ((NVIDIA, DISPLAY),), (), "cpu", {}
    ),
    Row("visible, installed and switched off", (CPU,), ((NVIDIA, DISPLAY),), ("inferplane-cuda",), "cpu", {}),
    Row("visible, and a better one runs", (acme("PRESENT"),), ((NVIDIA, DISPLAY),), (), "acme", {}),
    Row(
        "nothing installed",
        (REFERENCE,),
        NO_BUS,
        (),
        ["no platform can run on this host: no platform plugin is installed", "pip install inferplane-cpu"],
        {"cpu": ["platform 'cpu' is not installed", "pip install inferplane-cpu"]},
    ),
    Row(
        "nothing present",
        (REFERENCE, acme("ABSENT"), Platform("beta", "INCOMPATIBLE", {"tier": 5, "reasons": (DRIVER,)})),
        NO_BUS,
        ("inferplane-cpu",),
        ["acme-dist 1.2 is ABSENT: acme.reason", "beta-dist 1.2 is INCOMPATIBLE: driver.version", "inferplane doctor"],
        {"reference": "reference"},
    ),
    Row(
        "switched off",
        (REFERENCE,),
        NO_BUS,
        ("inferplane-cpu",),
        ["no platform can run", "platform 'cpu' is installed (inferplane-cpu 3) and left out: by --disable-plugins"],
        {
            "cpu": [
                "platform 'cpu' is installed (inferplane-cpu 3) and left out: by --disable-plugins",
                "take inferplane-cpu off --disable-plugins",
            ]
        },
        left_out=(
            LeftOut(
                distribution="inferplane-cpu",
                version="3",
                names=("cpu", "cpu.sdpa"),
                kinds=("platforms", "attention"),
                reason=Reason(code=DISABLED, hint="by --disable-plugins"),
            ),
        ),
    ),
    *(
        Row(
            f"a stranger's left out: {code}",
            (CPU,),
            NO_BUS,
            ("acme-npu",),
            "cpu",
            {
                "acme": ["platform 'acme' is installed (acme-npu 2) and left out: somehow", remedy],
                "acne": ["platform 'acne' is unknown", "did you mean --platform acme?", "acme-npu 2", remedy],
            },
            left_out=(
                LeftOut(
                    distribution="acme-npu",
                    version="2",
                    names=("acme",),
                    kinds=("platforms",),
                    reason=Reason(code=code, hint="somehow"),
                ),
            ),
        )
        for code, remedy in (
            (DISABLED, "take acme-npu off --disable-plugins"),
            (NOT_LISTED, "add acme-npu to --plugins"),
            (NOT_LOCKED, "inferplane plugins lock"),
        )
    ),
    *(
        Row(
            f"better one {state}, its evidence unknown, {what}",
            (CPU, acme(state, on_host=None, described=False)),
            bus,
            (),
            ["is unknown", f"acme-dist 1.2 is {state}", "--platform cpu", "--disable-plugins acme-dist"]
            if refuses
            else "cpu",
            {"cpu": "cpu", "acme": [f"acme-dist 1.2 is {state}"]},
            () if refuses else ("whether its hardware is on this host is unknown",),
        )
        for state in ("BROKEN", "INCOMPATIBLE")
        for what, bus, refuses in (
            ("nothing on the bus", NO_BUS, False),
            ("an accelerator of nobody's on the bus", ((ACME, ACCELERATOR),), True),
            ("a display of nobody's on the bus", ((ACME, DISPLAY),), False),
        )
    ),
    Row(
        "better one unreadable, another plugin accounts for the accelerator",
        (CPU, acme("ABSENT"), Platform("beta", "BROKEN", {"tier": 5, "on_host": None, "described": False})),
        ((ACME, ACCELERATOR),),
        (),
        "cpu",
        {},
        ("beta-dist 1.2 is BROKEN",),
    ),
    Row(
        "unknown name",
        (CPU, acme("PRESENT")),
        NO_BUS,
        (),
        "acme",
        {"acne": ["platform 'acne' is unknown; installed: acme, cpu", "did you mean --platform acme?"]},
    ),
]


@pytest.fixture
def select(make_platform: Callable[..., Any], make_host: Callable[..., Any]) -> Callable[..., PlatformChoice]:
    def run(row: Row, requested: str | None) -> PlatformChoice:
        platforms = [make_platform(each.name, each.state, **each.options) for each in row.platforms]
        packages = {*row.installed, *(found.distribution for found in platforms)}
        situation = Situation(
            platforms, make_host(*row.bus), load_hardware_table(), packages.__contains__, row.left_out
        )
        return select_platform(situation, requested)

    return run


def check(outcome: str | list[str], choose: Callable[[], PlatformChoice]) -> PlatformChoice | None:
    if isinstance(outcome, list):
        with pytest.raises(InferplaneError) as caught:
            choose()
        for text in outcome:
            assert text in str(caught.value)
        assert caught.value.code.startswith("platform.")
        assert caught.value.remedy
        return None
    choice = choose()
    assert choice.found.name == outcome
    return choice


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.situation)
def test_automatic(row: Row, select: Callable[..., PlatformChoice]) -> None:
    choice = check(row.automatic, lambda: select(row, None))
    if choice is not None:
        assert len(choice.warnings) == len(row.warnings)
        for text in row.warnings:
            assert any(text in warning for warning in choice.warnings)
        assert choice.decision.source == "automatic"
        losers = {loser.id: loser.reasons for loser in choice.decision.losers}
        assert set(losers) == {each.name for each in row.platforms} - {choice.found.name}
        assert all(losers.values()), "every loser has a reason"


@pytest.mark.parametrize(
    ("row", "name"),
    [(row, name) for row in TABLE for name in row.asked],
    ids=lambda value: getattr(value, "situation", value),
)
def test_asked(row: Row, name: str, select: Callable[..., PlatformChoice]) -> None:
    choice = check(row.asked[name], lambda: select(row, name))
    if choice is not None:
        assert choice.decision.source == "user"


@pytest.mark.parametrize("state", ["BROKEN", "INCOMPATIBLE"])
def test_insisting_on_a_lesser_one_is_told(state: str, select: Callable[..., PlatformChoice]) -> None:
    row = next(row for row in TABLE if row.situation == f"better one {state} with evidence")
    (warning,) = select(row, "cpu").warnings
    assert f"acme-dist 1.2 is {state}: driver.version" in warning


@pytest.mark.parametrize(
    ("state", "code"),
    [("ABSENT", "platform.absent"), ("BROKEN", "platform.broken"), ("INCOMPATIBLE", "platform.incompatible")],
)
def test_codes_are_stable(state: str, code: str, select: Callable[..., PlatformChoice]) -> None:
    row = Row("", (acme(state),), NO_BUS, (), "", {})
    with pytest.raises(InferplaneError) as caught:
        select(row, "acme")
    assert caught.value.code == code


def test_the_remedy_of_an_incompatible_one_is_its_reasons_hint(select: Callable[..., PlatformChoice]) -> None:
    row = Row("", (acme("INCOMPATIBLE", reasons=(DRIVER,)),), NO_BUS, (), "", {})
    with pytest.raises(InferplaneError) as caught:
        select(row, "acme")
    assert caught.value.remedy == "update the driver to 5"
