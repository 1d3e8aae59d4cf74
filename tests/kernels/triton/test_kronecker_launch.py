"""How kernels are launched again, with kernels that only write down what they are given."""

from __future__ import annotations

from typing import Any

import torch

from tamis.kernels.triton.kronecker_launch import Launch


class Compiled:
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.calls.append(("compiled", grid, arguments))


class Kernel:
    """As of `triton.jit`, for a signature (x, y, size, SIDE, LAST)."""

    arg_names = ("x", "y", "size", "SIDE", "LAST")

    def __init__(self, interpreted: bool = False) -> None:
        self.calls: list[Any] = []
        self.interpreted = interpreted

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **named: Any) -> Compiled | None:
            self.calls.append(("jit", grid, arguments, named))
            return None if self.interpreted else Compiled(self.calls)

        return run


def made(kernel: Kernel) -> Launch:
    return Launch(kernel, 7, (300,), {"LAST": True, "SIDE": 64}, {"num_warps": 4})


ROOM = torch.zeros(64)
START = -ROOM.data_ptr() % 16 // 4
X, Y, ELSEWHERE = ROOM[START : START + 8], ROOM[START + 8 : START + 16], ROOM[START + 17 : START + 25]


def test_the_compiled_kernel_is_launched_from_the_second_call_on() -> None:
    kernel = Kernel()
    launch = made(kernel)
    for _ in range(3):
        launch(X, Y)
    first, *others = kernel.calls
    assert first == ("jit", (7, 1, 1), (X, Y, 300), {"LAST": True, "SIDE": 64, "num_warps": 4})
    assert len(others) == 2
    for way, grid, arguments in others:  # in the order of the signature
        assert (way, grid) == ("compiled", (7, 1, 1)) and arguments[:2] == (X, Y) and arguments[2:] == (300, 64, True)


def test_tensors_that_are_not_aligned_go_the_long_way() -> None:
    kernel = Kernel()
    launch = made(kernel)
    for tensors in ((ELSEWHERE, Y), (X, Y), (X, ELSEWHERE), (X, Y)):
        launch(*tensors)
    assert [call[0] for call in kernel.calls] == ["jit", "jit", "jit", "compiled"]


def test_the_interpreter_compiles_nothing() -> None:
    kernel = Kernel(interpreted=True)
    launch = made(kernel)
    for _ in range(2):
        launch(X, Y)
    assert [call[0] for call in kernel.calls] == ["jit", "jit"]
