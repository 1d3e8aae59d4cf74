"""Threads that trace at the same time get the networks they would get alone, and leave models as they were."""

import logging
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import torch
from torch import nn

import tamis


class Meeting(nn.Module):
    """Stays in `forward` until another thread is there as well, or cannot come."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        HERE["now"] += 1
        HERE["most"] = max(HERE["most"], HERE["now"])
        if HERE["now"] > 1:
            MET.set()
        MET.wait(0.1)
        HERE["now"] -= 1
        return self.layer(x).relu()


HERE, MET = {"now": 0, "most": 0}, Event()  # beside the module: tracing puts back what it changes in itself


def test_one_thread_traces_at_a_time():
    torch.manual_seed(0)
    model = Meeting()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    kinds = {name: (type(value), id(value)) for name, value in model.named_parameters()}
    start = Barrier(3)

    def trace(_: int) -> tamis.Network:
        start.wait()
        return tamis.trace(model, torch.zeros(1, 3))

    with ThreadPoolExecutor(3) as threads:
        networks = list(threads.map(trace, range(3)))
    assert HERE["most"] == 1
    assert {name: (type(value), id(value)) for name, value in model.named_parameters()} == kinds
    x = torch.randn(5, 3)
    for network in networks:
        assert all(type(value) is torch.Tensor for value in network.params.values())
        assert all(torch.equal(network.params[name], value) for name, value in before.items())
        assert torch.equal(network(x), model.layer(x).relu())


def test_warnings_and_logs_are_as_before_after_threads():
    filters, disabled = list(warnings.filters), logging.root.manager.disable
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: tamis.trace(nn.Linear(3, 2), torch.zeros(1, 3)), range(2)))
    assert (warnings.filters, logging.root.manager.disable) == (filters, disabled)
