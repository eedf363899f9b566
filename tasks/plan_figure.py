"""RMSE against epsilon as a plan foretells it: of made-up ratings, hence public."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from models.planning import Plan


def plan_figure(plan: Plan, source: str) -> Figure:
    """What is foretold at each epsilon, with a band of one standard deviation, between no noise and nothing but it."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    rmse, spread = (np.array([getattr(f, name) for f in plan.foretold]) for name in ("rmse", "rmse_sd"))
    axes.fill_between(plan.epsilons, rmse - spread, rmse + spread, color="C0", alpha=0.2, linewidth=0)
    axes.plot(plan.epsilons, rmse, "o-", color="C0", label="foretold, ± standard deviation;\nhow far above no noise")
    for epsilon, foretold in zip(plan.epsilons, plan.foretold, strict=True):
        axes.annotate(
            f"{foretold.loss:+.1%}", (epsilon, foretold.rmse), (0, 9), textcoords="offset points", ha="center"
        )
    axes.axhline(plan.without_noise.rmse, color="C2", linestyle="--", label="no noise")
    axes.axhline(plan.alone.rmse, color="0.4", linestyle=":", label="alone: own ratings, nobody else's")
    axes.set_xscale("log")
    axes.set_xticks(plan.epsilons, [f"{epsilon:g}" for epsilon in plan.epsilons])
    axes.minorticks_off()
    axes.margins(x=0.08, y=0.12)
    axes.set(xlabel="ε that each rating pays", ylabel="RMSE of made-up ratings (rating units)")
    axes.set_title(f"pdp-histogram on {source}, before spending: {plan.n_ratings:,} ratings", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
