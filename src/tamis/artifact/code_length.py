"""Code length: the bits of a message from which a receiver rebuilds every parameter and buffer of a network.

Occam bounds count the bits of a prefix-free code. This one is meant to be short for small networks, of which every bit
matters; docs/format.md says what stands in a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.arithmetic import Receiver, Sender
from tamis.artifact.compressed import Compressed
from tamis.artifact.encodings.base import view_bits
from tamis.artifact.header import CODES
from tamis.artifact.tensor_message import receive_tensor, send_tensor
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters, join_names
from tamis.graph import Network

Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class Message:
    """A network as a self-delimiting row of bits.

    Attributes:
        bits: their exact number, which is what `decode` consumes.
        parts: how many of them went to what, such as "fc.weight/indices"; they sum to `bits`.
        data: the bits, the first as the highest of the first byte, the last byte filled up with zeros.
    """

    bits: int
    parts: Mapping[str, int]
    data: bytes


class Received(dict[str, Tensor]):
    """Parameters and buffers by name, and how many bits they were read from.

    Attributes:
        bits: of the message, without what followed it.
    """

    bits: int


def message(small: Compressed | Network, prior: Network | Values | None = None) -> Message:
    """Encode a network for a receiver who knows its architecture and a prior.

    The receiver knows names, shapes and dtypes of parameters and buffers, and which of them the prior has, but no value
    beside it. Everything else is in the message and counted: masks, levels, scales, indices, biases, statistics of
    batch-norms, integers, and how each of them is sent. A tensor that equals the prior's costs one bit.

    Args:
        small: the network to send. How it was pruned and quantized shortens the message, but only values are sent: an
            entry that was pruned and one that is zero by itself are the same.
        prior: values that were fixed before any data was seen, for all or some of the names, such as an initialization
            from a seed. A bound from a message holds only with a prior that does not depend on the data.

    Example:
        >>> net = tamis.trace(nn.Linear(3, 2), torch.zeros(1, 3))
        >>> small = net.with_params({"weight": torch.zeros(2, 3)})
        >>> message(net, prior=net).bits  # one for each of two tensors
        2
        >>> message(small).bits < message(net).bits
        True
    """
    if not isinstance(small, (Compressed, Network)):
        raise InvalidInput(f"message needs a Compressed or a Network, got {type(small).__name__}")
    values, known = _list_values(small), _select_prior(prior, small)
    masks, codes = (small.masks, small.codes) if isinstance(small, Compressed) else ({}, {})
    sender = Sender()
    for name, where in values.items():
        value = where.cpu().contiguous()
        if value.numel() == 0:
            continue
        sender.heading = name
        if name in known:
            same = np.array_equal(view_bits(value), view_bits(known[name]))
            sender.choice(int(same), 2)
            sender.mark("prior")
            if same:
                continue
        send_tensor(sender, value, codes.get(name), masks.get(name))
    data, length, parts = sender.finish()
    return Message(length, MappingProxyType(parts), data)


def decode(data: bytes, like: Compressed | Network | Values, prior: Network | Values | None = None) -> Received:
    """Decode the parameters and buffers in a message, bit for bit.

    Args:
        data: the message; whatever follows it is not read.
        like: the architecture, whose names, shapes and dtypes are used, and no values.
        prior: what the message was sent with.

    Returns:
        The tensors by name, on the CPU, with `bits`, the number of bits that the message has.

    Raises:
        CorruptArtifact: the bits are no message for this architecture and prior, or end before it does.

    Example:
        >>> net = tamis.trace(nn.Linear(3, 2), torch.zeros(1, 3))
        >>> sent = message(net)
        >>> received = decode(sent.data, net)
        >>> received.bits == sent.bits, torch.equal(received["weight"], net.params["weight"])
        (True, True)
    """
    values, known = _list_values(like), _select_prior(prior, like)
    receiver, received = Receiver(bytes(data)), Received()
    for name, value in values.items():
        shape, dtype = tuple(value.shape), value.dtype
        try:
            if value.numel() == 0:
                received[name] = torch.empty(shape, dtype=dtype)
            elif name in known and receiver.choice(0, 2):
                received[name] = known[name].clone()
            else:
                received[name] = receive_tensor(receiver, shape, dtype)
        except CorruptArtifact as error:
            raise CorruptArtifact(f"at '{name}', what should be a message {error}") from error
    try:
        received.bits = receiver.finish()
    except CorruptArtifact as error:
        raise CorruptArtifact(f"what should be a message {error}") from error
    return received


# -- who knows what ------------------------------------------------------------------------------------------------


def _list_values(source: Compressed | Network | Values) -> dict[str, Tensor]:
    """Return parameters and buffers in the order of their names."""
    values = source.params if isinstance(source, (Compressed, Network)) else source
    if not isinstance(values, Mapping):
        raise InvalidInput(f"an architecture is a Network, a Compressed or a state_dict, got {type(source).__name__}")
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.dtype not in CODES:
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise InvalidParameters(f"'{name}' is {kind}, which a message cannot hold")
    return {name: values[name].detach() for name in sorted(values)}


def _select_prior(prior: Network | Values | None, source: Compressed | Network | Values) -> dict[str, Tensor]:
    """Check the prior against the architecture, and return its values."""
    if prior is None:
        return {}
    wanted, known = _list_values(source), _list_values(prior)
    # A state_dict has tied parameters under each of their names.
    tied = source.aliases if isinstance(source, (Compressed, Network)) else {}
    known = {name: value for name, value in known.items() if name not in tied}
    if strangers := [name for name in known if name not in wanted]:
        raise InvalidParameters(f"the prior has {join_names(strangers)}, which are not in the network")
    for name, value in known.items():
        here, there = (value.dtype, tuple(value.shape)), (wanted[name].dtype, tuple(wanted[name].shape))
        if here != there:
            raise InvalidParameters(f"'{name}' is {here[0]} of shape {here[1]} in the prior, {there} in the network")
    return {name: value.cpu().contiguous() for name, value in known.items()}
