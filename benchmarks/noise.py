"""How fast the samplers of noise are, beside each other, on one core.

    python benchmarks/noise.py [--repeat 7]

Every figure is the median of so many turns, in each of which all of them are timed, after one that compiles; of
the processor's time, so that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import os
import secrets
from functools import partial
from time import process_time

import numpy as np
from speed import timed

from models.privacy.certified import Law
from models.privacy.exact_sampler import add_noise
from models.privacy.noise import SeededNoise, _by_opendp

MILLION = 1_000_000
LAWS: dict[str, tuple[Law, float]] = {
    "discrete Laplace, 2^10 steps (a rating, ε = 1)": ("laplace", 2.0**10),
    "discrete Gaussian, 4.4e6 steps (a user, ε = 1, δ = 1e-6)": ("gaussian", 4.4e6),
}
CALLS = {
    "ours": (1, MILLION),
    "OpenDP": (1, 20_000),
    "numpy": (1, MILLION),
    "ours, by 20": (500, 20),
    "OpenDP, by 20": (50, 20),
}
"""How often each is called, and for how many values."""


def draw(who: str, law: Law, scale: float) -> None:
    calls, n = CALLS[who]
    values = np.zeros(n, np.int64)
    for _ in range(calls):
        if who.startswith("ours"):
            add_noise(values, scale=scale, law=law)
        elif who.startswith("OpenDP"):
            _by_opendp(values, scale=scale, law=law)
        elif law == "laplace":
            SeededNoise().add_discrete_laplace(values, scale=scale)
        else:
            SeededNoise().add_discrete_gaussian(values, scale=scale)


def table(repeat: int) -> None:
    work = {f"{law}/{who}": partial(draw, who, *LAWS[law]) for law in LAWS for who in CALLS}
    seconds = timed({**work, "bytes": lambda: secrets.token_bytes(2**20)}, repeat, process_time)
    print("| microseconds a value |", " | ".join(CALLS), "| OpenDP / ours | numpy / ours |")
    print("| --- " * (len(CALLS) + 3) + "|")
    for law in LAWS:
        each = {who: seconds[f"{law}/{who}"] / (calls * n) * 1e6 for who, (calls, n) in CALLS.items()}
        ratios = f"{each['OpenDP'] / each['ours']:.0f} | {each['numpy'] / each['ours']:.2f}"
        print(f"| {law} |", " | ".join(f"{each[who]:.2g}" for who in CALLS), "|", ratios, "|")
    print(f"The operating system's generator: {2**20 / seconds['bytes'] / 1e6:.0f} MB a second.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=7)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    table(parser.parse_args().repeat)
