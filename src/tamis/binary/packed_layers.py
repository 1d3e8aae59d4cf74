"""Packed layers run inference with one bit a weight: comparison, XNOR-popcount convolution and scale in one call.

Each takes and gives what the layer of `tamis.binary.layers` that it was made of does in evaluation, to the bit. Where
another binary layer is all that reads its output, it gives that layer's packed bits instead, (out ≥ τ) xor f with τ and
f of the reader: see `tamis.kernels.binary` for their layout.
"""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import Tensor, nn

from tamis.binary.batchnorm_affine import BatchNormAffine
from tamis.binary.layers import BinaryConv1d, BinaryConv2d, BinaryLayer, BinaryLinear, thresholds
from tamis.binary.scales import analytic_scale
from tamis.binary.tracing import is_hooked
from tamis.errors import InvalidInput
from tamis.kernels import CachedBinaryConv2d, Geometry, Operands, binary_conv2d, is_intercepted, pack_weight

BITS = torch.int64  # the dtype of packed bits, by which a layer knows them
KERNEL_TENSORS = (
    "bits",
    "thresholds",
    "flips",
    "out_thresholds",
    "out_flips",
    "bias",
    "slope",
    "shift",
)  # in the order in which CachedBinaryConv2d takes them
MOST_PRODUCTS = 1 << 22  # that the kernels sum
Added = Tensor | float | None  # to a layer's output: of its shape, or of one that is broadcast to it


class PackedLayer(nn.Module):
    """This is the base of the packed layers, which `pack_layer` makes.

    Attributes:
        bits: the signs of weights, packed.
        thresholds, flips: τ and f of the input.
        bias: added after the scale, or None; where the output is bits, it is part of `out_thresholds`.
        out_thresholds, out_flips: τ and f of the layer that reads the output as bits, or None.
        reads_bits: whether another layer gives its bits to this one.
        norm: the batch normalization that follows, or None; slope and shift are what it computes in evaluation.
        relu: whether a ReLU follows.
    """

    bits: Tensor
    thresholds: Tensor
    flips: Tensor
    bias: Tensor | None
    out_thresholds: Tensor | None
    out_flips: Tensor | None
    slope: Tensor | None
    shift: Tensor | None

    def __init__(self, layer: BinaryLayer, name: str) -> None:
        super().__init__()
        _check(layer, name)
        weight = layer.weight.detach()
        # To the kernels every layer is a convolution of images: a linear one has weights (O, C, 1, 1), one of signals
        # (O, C, 1, L).
        shape = (*weight.shape[:2], *[1] * (4 - weight.dim()), *weight.shape[2:])
        self.weight_shape, self.groups, self.dimensions = shape, getattr(layer, "groups", 1), layer.dimensions
        self.stride, self.padding, self.dilation = (1, 1), (0, 0), (1, 1)
        if isinstance(layer, BinaryConv2d):
            self.stride, self.dilation = _as_pair(layer.stride, 1), _as_pair(layer.dilation, 1)
            self.padding = _as_pair(layer.padding, 0)
        self.reads_bits, self.out_groups, self.relu = False, 1, False
        # Buffers and not attributes, so that the layer can be moved, copied and exported; none of them is trained.
        self.register_buffer("bits", pack_weight(weight.reshape(shape), self.groups))
        scales = _list_scales(layer)
        for place, factor in enumerate(scales):
            self.register_buffer(f"scale{place}", factor)
        self.scale_names = [f"scale{place}" for place in range(len(scales))]
        tau, flips = thresholds(layer)
        self.register_buffer("thresholds", tau)
        self.register_buffer("flips", flips)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())
        # Registered although they are empty: what is assigned later is a buffer then, too, and moves with the others.
        for absent in ("out_thresholds", "out_flips", "slope", "shift"):
            self.register_buffer(absent, None)
        # All of them with one call: looking up each attribute of a module by itself takes too long next to a small
        # kernel.
        self.select_tensors = itemgetter(*KERNEL_TENSORS, *self.scale_names)
        self.norm: nn.Module | None = None
        self.native = CachedBinaryConv2d(Geometry(shape, self.stride, self.padding, self.dilation))

    @property
    def gives_bits(self) -> bool:
        """Return whether the output is packed bits."""
        return self.out_thresholds is not None

    def give_bits(self, thresholds: Tensor, flips: Tensor, groups: int) -> None:
        """Give packed bits to the layer that reads the output, which has these τ and f, and so many groups."""
        self.out_thresholds, self.out_flips = thresholds, flips
        # The thresholds are for the output before its bias (`BitHandoff.thresholds`), which must not be added, too.
        self.bias, self.out_groups = None, groups
        self.native.geometry = self.native.geometry._replace(out_groups=groups)

    def fuse_epilogue(self, norm: nn.Module | None, affine: BatchNormAffine | None, relu: bool) -> None:
        """Fuse the following batch normalization, as slope and shift, and ReLU into this layer's pass.

        A second argument of a call is added between the two.
        """
        self.norm, self.relu, self.native.relu = norm, relu, relu
        if affine is not None:
            self.slope, self.shift, self.native.one_rounding = affine.slope, affine.shift, affine.one_rounding

    def forward(self, x: Tensor, added: Added = None) -> Tensor:
        # The kernel writes to memory by its address, which neither a compiler nor a tracer can follow.
        y = None if is_intercepted() or self._needs_gradient(added) else self._run_natively(x, added)
        return self._run_with_torch(x, added) if y is None else y

    def _needs_gradient(self, added: Added) -> bool:
        """Return whether the following steps need gradients; none pass through the layer itself."""
        if not torch.is_grad_enabled() or (added is None and self.norm is None):
            return False
        # The normalization is a module still, and its weights may ask for gradients.
        weights = [] if self.norm is None else self.norm.parameters()
        return any(isinstance(each, Tensor) and each.requires_grad for each in (added, *weights))

    def _run_natively(self, x: Tensor, added: Added) -> Tensor | None:
        """Return the output from the extension, or None where it cannot run this."""
        if added is not None and not (isinstance(added, Tensor) and added.dim() == self.dimensions + 2):
            return None  # the kernel adds numbers of the result's shape alone, and broadcasts nothing
        images = x if x.dtype is BITS else self._as_images(x)
        y = self.native(images, None if added is None else self._as_images(added), self.select_tensors(self._buffers))
        return y if y is None or y.dtype is BITS else self._from_images(y)

    def _run_with_torch(self, x: Tensor, added: Added) -> Tensor:
        """Return the output from operators that PyTorch can compile, export, and run on any device."""
        return self._apply_epilogue(self._multiply(x), added)

    def _multiply(self, x: Tensor) -> Tensor:
        """Return packed bits, or numbers with the bias added."""
        # By the dtype and not by `reads_bits`: a layer may also be called by itself, with numbers.
        bits = x.dtype is BITS
        operands = Operands(
            x if bits else self._as_images(x),
            self.bits,
            tuple(self.get_buffer(name) for name in self.scale_names),
            None if bits else self.thresholds,
            None if bits else self.flips,
            self.out_thresholds,
            self.out_flips,
        )
        geometry = Geometry(self.weight_shape, self.stride, self.padding, self.dilation, self.out_groups)
        y = binary_conv2d(operands, geometry)
        if self.gives_bits:
            return y
        # After the scale and in a step of its own, as `BinaryLayer` adds it, so that it is rounded alike.
        if self.bias is not None:
            y = y + self.bias[:, None, None]
        return self._from_images(y)

    def _apply_epilogue(self, y: Tensor, added: Added) -> Tensor:
        # The same three steps as in the kernel, in its order.
        if self.norm is not None:
            y = self.norm(y)
        if added is not None:
            y = y + added
        return torch.relu(y) if self.relu else y

    def extra_repr(self) -> str:
        geometry = [f"{name}={getattr(self, name)}" for name in ("stride", "padding", "dilation", "groups")]
        outputs, inputs = ("bits" if bits else "floats" for bits in (self.gives_bits, self.reads_bits))
        relu = ["ReLU"] if self.relu else []
        return ", ".join([f"weight={self.weight_shape}", *geometry, f"{inputs} in", *relu, f"{outputs} out"])

    def _as_images(self, x: Tensor) -> Tensor:
        """Return the layer's input as images (N, C, H, W)."""
        return x

    def _from_images(self, y: Tensor) -> Tensor:
        return y


class PackedConv2d(PackedLayer):
    """A `PackedConv2d` is a `BinaryConv2d` for inference: (N, C, H, W) → (N, O, H', W'), or bits on either side."""


class PackedConv1d(PackedLayer):
    """A `PackedConv1d` is a `BinaryConv1d` for inference: (N, C, L) → (N, O, L'), as images of one row."""

    def _as_images(self, x: Tensor) -> Tensor:
        return x.unsqueeze(2)

    def _from_images(self, y: Tensor) -> Tensor:
        return y.squeeze(2)


class PackedLinear(PackedLayer):
    """A `PackedLinear` is a `BinaryLinear` for inference: (…, C) → (…, O), as images of one pixel.

    Packed bits are (…, 1, words, 1, 1), so that the reader knows the axes before the features.
    """

    def _run_natively(self, x: Tensor, added: Added) -> Tensor | None:
        # An input (N, L, C) has an axis that a batch normalization would take for that of channels.
        plain = x.dim() == (5 if x.dtype is BITS else 2)
        return super()._run_natively(x, added) if plain else None

    def _multiply(self, x: Tensor) -> Tensor:
        own = 4 if x.dtype is BITS else 1
        leading, own_shape = x.shape[: x.dim() - own], x.shape[x.dim() - own :]
        y = super()._multiply(x.reshape(-1, *own_shape))
        return y.reshape(*leading, *y.shape[1:])

    def _as_images(self, x: Tensor) -> Tensor:
        return x[:, :, None, None]

    def _from_images(self, y: Tensor) -> Tensor:
        return y.flatten(1)


def pack_layer(layer: BinaryLayer, name: str) -> PackedLayer:
    """Make the inference layer that replaces a binary one; raise InvalidInput where there cannot be one.

    Args:
        layer: left as it is.
        name: of the layer in its model, for messages.

    Example:
        >>> pack_layer(BinaryConv2d(512, 512, 3, padding=1), "conv").bits.nbytes
        307200
    """
    kind: type[PackedLayer] = PackedConv1d if isinstance(layer, BinaryConv1d) else PackedConv2d
    return (PackedLinear if isinstance(layer, BinaryLinear) else kind)(layer, name)


def packed_layers(model: nn.Module) -> dict[str, PackedLayer]:
    """Return the packed layers of a compiled model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, PackedLayer)}


def _check(layer: BinaryLayer, name: str) -> None:
    if layer.real_weights:
        raise InvalidInput(
            f"'{name}' has real weights, as in the first stage of training: train the second one, or take "
            "tamis.binary.two_stage.with_binary_weights(model)"
        )
    if layer.weight.dtype is not torch.float32:
        raise InvalidInput(f"'{name}' computes in {layer.weight.dtype}, compiled layers in float32: call model.float()")
    if (products := layer.weight[0].numel()) >= MOST_PRODUCTS:
        raise InvalidInput(f"'{name}' has {products:,} weights a filter; kernels sum fewer than {MOST_PRODUCTS:,}")
    if is_hooked(layer):
        raise InvalidInput(f"'{name}' has forward hooks, which a compiled layer would not call: remove them first")


def _list_scales(layer: BinaryLayer) -> list[Tensor]:
    """Return the factors of a layer's scale, in the shapes of images; see `tamis.kernels.binary`."""
    if layer.form == "analytic":
        return [analytic_scale(layer.weight.detach())]
    # Magnitudes are taken once here, and not in every call.
    factors = [factor.detach().abs() for factor in layer.factors.values()]
    if layer.dimensions == 1:  # signals are images of one row
        factors = [factors[0] if factors[0].dim() == 1 else factors[0][:, None], *(row[None] for row in factors[1:])]
    return factors


def _as_pair(sizes: tuple[int, ...], row: int) -> tuple[int, int]:
    """Return rows and columns, where signals have one row."""
    return (row, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
