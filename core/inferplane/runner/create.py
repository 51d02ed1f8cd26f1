"""Chooses between a platform's own runner and core's; knows nothing about what either does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferplane.errors import InferplaneError
from inferplane.plan.load import Loader, construct
from inferplane_api.platform import PlatformContext
from inferplane_api.runner import RunnerContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.plan.types import Component, Plan
    from inferplane_api.runner import Runner


def create_runner(
    plan: Plan, progress: Callable[[str, float], None], load: Callable[[Component], Any] | None = None
) -> Runner:
    """The runner of a plan. `progress(phase, share)` announces long phases; `load` loads components, by default a
    `Loader` of the plan.

    Raises InferplaneError when a platform declares a runner of its own and makes none.
    """
    load = load or Loader(plan)
    if not plan.runner_seam:
        from inferplane.runner.runner import TorchRunner

        return TorchRunner(plan, progress, load)
    platform = construct(load, plan.platform, PlatformContext(plan.device, plan.platform_options, plan.num_threads))
    platform.runtime.activate()
    checkpoint = None
    if not plan.dummy_weights:
        checkpoint = load(plan.checkpoint_format)().open(Path(plan.checkpoint_path))
    runner: Runner | None = platform.create_runner(
        RunnerContext(
            checkpoint=checkpoint,
            model=plan.model,
            geometry=plan.geometry,
            limits=plan.limits,
            dtype=plan.dtype,
            options=plan.platform_options,
            progress=progress,
        )
    )
    if runner is None:
        component = plan.platform
        raise InferplaneError(
            f"platform {plan.platform_name} ({component.distribution} {component.version}) declares a runner of its "
            "own and made none",
            code="platform.runner",
            remedy=f"report it to the authors of {component.distribution}",
        )
    return runner
