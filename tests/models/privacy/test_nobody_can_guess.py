"""No two processes, threads or calls ever draw the same noise, whatever was drawn and seeded before they parted."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Barrier

import numpy as np
import pytest

from models.privacy.noise import MANY, ExactNoise, NoiseSource, SeededNoise

FEW = 60
HUGE = 1e15
"""Of so many steps that two independent values are the same in one of a quadrillion cases."""

Draws = dict[str, np.ndarray]


def draws_of(source: NoiseSource) -> Draws:
    """A little of every law, as numbers that are all different if nothing repeats; after reseeding whatever can be."""
    np.random.seed(0)
    random.seed(0)
    few, many = np.zeros(FEW, np.int64), np.zeros(MANY, np.int64)
    return {
        "laplace, few": source.add_discrete_laplace(few, scale=HUGE),
        "laplace, many": source.add_discrete_laplace(many, scale=HUGE),
        "gaussian, few": source.add_discrete_gaussian(few, scale=HUGE),
        "gaussian, many": source.add_discrete_gaussian(many, scale=HUGE),
        "k-norm": source.add_knorm(few[:, None], scale=HUGE).ravel(),
        "keep": windows(source.keep(np.full(FEW + 63, 0.5))),
    }


def windows(bits: np.ndarray) -> np.ndarray:
    """Every 64 bits in a row as a number."""
    return np.packbits(np.lib.stride_tricks.sliding_window_view(bits, 64), axis=1).view(np.uint64).ravel()


def repeated(parties: list[Draws]) -> set[str]:
    """The laws of which any two parties have a number in common: the same stream, or the same at another place."""
    return {law for law in parties[0] for one, other in combinations(parties, 2) if np.isin(one[law], other[law]).any()}


used_before: dict[str, NoiseSource] = {}
"""What a forked child finds in its memory."""


def draw_from(name: str) -> Draws:
    return draws_of(used_before[name])


def draw_exactly() -> Draws:
    return draws_of(ExactNoise())


def draw_without_a_seed() -> Draws:
    return draws_of(SeededNoise())


def send(end: Connection, work: Callable[..., Draws], *arguments: str) -> None:
    end.send(work(*arguments))


def in_two_processes(kind: str, work: Callable[..., Draws], *arguments: str) -> list[Draws]:
    """What two children draw that start from the same state of this process."""
    context, children, drawn = get_context(kind), [], []
    for _ in range(2):
        ours, theirs = context.Pipe()
        child = context.Process(target=send, args=(theirs, work, *arguments))
        child.start()
        children.append((child, ours))
    for child, ours in children:
        assert ours.poll(60), "a child drew nothing"
        drawn.append(ours.recv())
        child.join()
    return drawn


@pytest.fixture(scope="module")
def before() -> Draws:
    """What this process drew first: its generators have been used when it forks."""
    used_before["exact"], used_before["shared"] = ExactNoise(), SeededNoise()
    draw_from("shared")
    return draw_from("exact")


@pytest.mark.parametrize("kind", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_two_processes_of_one_parent_share_no_exact_noise(kind: str, before: Draws) -> None:
    children = in_two_processes(kind, draw_exactly)
    assert not repeated([before, *children, draw_exactly()])


def test_a_source_that_was_used_before_the_fork_is_not_shared(before: Draws) -> None:
    children = in_two_processes("fork", draw_from, "exact")
    assert not repeated([before, *children, draw_from("exact")])


def test_two_workers_never_share_the_noise_of_a_cross_validation(before: Draws) -> None:
    """A source of its own for every fit, without a seed, in the worker that fits."""
    children = in_two_processes("fork", draw_without_a_seed)
    assert not repeated([*children, draw_without_a_seed(), draw_without_a_seed()])


def test_a_stream_that_two_processes_share_is_found(before: Draws) -> None:
    """The control: numpy's generator, copied by the fork."""
    one, other = in_two_processes("fork", draw_from, "shared")
    assert repeated([one, other]) == set(one)
    assert repeated([{law: numbers[5:] for law, numbers in one.items()}, other]) == set(one)


@pytest.mark.parametrize("shared", [False, True])
def test_two_threads_share_no_exact_noise(shared: bool, before: Draws) -> None:
    source, both = ExactNoise(), Barrier(2)

    def draw() -> Draws:
        both.wait()
        return draws_of(source if shared else ExactNoise())

    with ThreadPoolExecutor(2) as threads:
        drawn = [future.result() for future in [threads.submit(draw) for _ in range(4)]]
    assert not repeated([before, *drawn])


def test_threads_do_not_spoil_each_others_noise() -> None:
    """Two at once in the kernel, which holds no lock: no value is drawn twice or not at all."""
    values = np.arange(40) * 2**40
    with ThreadPoolExecutor(2) as threads:
        work = [threads.submit(ExactNoise().add_discrete_laplace, np.tile(values, 1000), scale=3.0) for _ in range(8)]
        for future in work:
            noise = future.result() - np.tile(values, 1000)
            assert np.abs(noise).max() < 100
            assert abs((noise != 0).mean() - 2 / (1 + np.exp(1 / 3))) < 0.02


def test_within_a_call_and_from_call_to_call_nothing_repeats(before: Draws) -> None:
    first, second = draw_exactly(), draw_exactly()
    assert all(len(np.unique(numbers)) == len(numbers) for numbers in first.values())
    assert not repeated([first, second])


def test_what_seeds_numpy_or_python_seeds_no_noise() -> None:
    """draws_of reseeds both before every draw, so that all tests above would fail; here by name."""
    for source in (ExactNoise, SeededNoise):
        drawn = []
        for _ in range(2):
            np.random.seed(7)
            random.seed(7)
            drawn.append(source().add_knorm(np.zeros((FEW, 1), np.int64), scale=HUGE))
        assert not (drawn[0] == drawn[1]).any()


def test_exact_noise_keeps_nothing() -> None:
    source = ExactNoise()
    draws_of(source)
    assert vars(source) == {}
    with pytest.raises(TypeError):
        ExactNoise(0)  # type: ignore[call-arg]
