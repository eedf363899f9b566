"""How a numba kernel is compiled here, once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def exact_kernel(function: Kernel) -> Kernel:
    """Likewise, where every operation is the one that is written: for kernels that draw noise."""
    return cast(Kernel, numba.njit(nogil=True, cache=True)(function))


def kernel(function: Kernel) -> Kernel:
    """Compile to machine code that holds no interpreter lock and is cached on disk.

    `fastmath` may reorder additions: fine for a solve, never used to make or to add noise.
    """
    return cast(Kernel, numba.njit(nogil=True, cache=True, fastmath=True)(function))
