"""Numbers of a model made by hand, for `TrialResult` and `UnprunedResult`."""

from __future__ import annotations

from typing import Any


def measured(metric: float, flops: int, full: int) -> dict[str, Any]:
    """All that must be known of a model of these FLOPs, of `full`; held out it is a bit worse."""
    return {
        "metric": metric,
        "heldout_metric": metric - 0.01,
        "interval": (metric - 0.02, metric + 0.02),
        "heldout_interval": (metric - 0.03, metric + 0.01),
        "divergence": 0.25,
        "heldout_divergence": 0.5,
        "widths": {},
        "cost": flops,
        "cost_full": full,
        "unit": "flops@16",
        "flops": flops,
        "flops_full": full,
        "flops_unit": "flops@16",
        "params": flops // 10,
        "bytes": flops // 2,
    }


def budgeted(metric: float, flops: int, full: int, target: float | None) -> dict[str, Any]:
    """A trial's, in the middle of its budget unless `target` says otherwise."""
    target = flops / full if target is None else target
    asked = {"target_ratio": target, "tolerance": 0.05, "budget_unit": "flops@16"}
    return {**measured(metric, flops, full), **asked}
