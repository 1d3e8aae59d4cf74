"""Layers of XNOR-Nets take signs of normalised inputs, signs for weights, and a positive scale.

    x_l = (sign(W) ⊛ sign ∘ BNorm(x_{l−1})) ⊙ w_scale            (Chee and Loustau, section 3.2)

W are real weights, kept for training: gradients reach them through the clipped straight-through estimator. The
convolution of signs gives whole numbers in [−n, n] for n weights a filter (printed: {0, 1}; see ERRATA 6). Where it is
padded, it is padded with zeros after the signs were taken, so that padding adds nothing.

In training, BNorm is over the batch. In evaluation each channel's sign ∘ BNorm is a comparison, b = (x ≥ τ_c) xor f_c,
as `thresholds` gives them, so that a kernel that compares with the same numbers gives the same bits. The convolution is
then rounded to whole numbers, since some implementations of it are exact only up to rounding; below 2²⁴ float32 holds
them all. Scale and bias follow in this order: out = (n · scale) + bias, each rounded to float32.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tamis.binary.estimators import approx_sign, as_signs, check_estimator, clipped, round_through, rsign
from tamis.binary.scales import SPATIAL_FORMS, analytic_scale, begin_factors, check_form, compute_scale, factor_shapes
from tamis.errors import InvalidInput

Sizes = int | tuple[int, ...]


class BinaryLayer(nn.Module):
    """This is the base of the binary layers; see `BinaryConv2d`.

    Attributes:
        weight: the real weights W, whose signs are the layer's.
        bias: added after the scale, or None.
        norm: the batch normalization of the input.
        shift: of the signs, a number for each channel, with the estimator "rsign"; else None.
        form: of the scale; its parameters are `alpha`, `beta` and `gamma`, as far as it has them.
        real_weights: whether W itself is convolved with the signs of the input, without scales: the first of the two
            stages of training (`tamis.binary.two_stage`).
    """

    norm: nn.BatchNorm1d | nn.BatchNorm2d
    bias: nn.Parameter | None
    shift: nn.Parameter | None

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        norm: nn.BatchNorm1d | nn.BatchNorm2d,
        bias: bool,
        scale: str,
        output_size: tuple[int, ...],
        estimator: str,
    ) -> None:
        super().__init__()
        check_estimator(estimator)
        outputs = weight_shape[0]
        self.estimator, self.form, self.output_size = estimator, scale, output_size
        self.dimensions = len(weight_shape) - 2
        self.real_weights = False
        self.norm = norm
        # Empty here; `reset_parameters` draws them, as it does for a model that is begun anew.
        self.weight = nn.Parameter(torch.empty(weight_shape))
        self.register_parameter("bias", nn.Parameter(torch.empty(outputs)) if bias else None)
        shifted = estimator == "rsign"
        self.register_parameter("shift", nn.Parameter(torch.empty(norm.num_features)) if shifted else None)
        shapes = factor_shapes(scale, outputs, output_size)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self._factor_names = tuple(shapes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W and the bias as torch does for its layers; begin the scale at mean |W| and the shift at 0."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(max(self.weight[0].numel(), 1))
            nn.init.uniform_(self.bias, -bound, bound)
        if self.shift is not None:
            nn.init.zeros_(self.shift)
        self.norm.reset_parameters()
        self.begin_scale()

    @property
    def factors(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the scale by name, α, β, γ as its form has them; their magnitudes count."""
        return {name: self.get_parameter(name) for name in self._factor_names}

    def begin_scale(self) -> None:
        """Set the scale to XNOR-Net's mean |W|."""
        begin_factors(self.factors, self.weight)

    def scale(self) -> Tensor:
        """Compute the scale, ≥ 0, in a shape that broadcasts to the output's: (channels, 1 or rows, 1 or columns)."""
        if self.form == "analytic":
            # From the weights as they are in this step, with their gradient: nothing is stored.
            mean = analytic_scale(self.weight)
            return mean.reshape(-1, *[1] * self.dimensions)
        return compute_scale(list(self.factors.values()), self.dimensions)

    def binary_weight(self) -> Tensor:
        """Return sign(W), with the gradient g ↦ g · 1_{|W| ≤ 1}."""
        return clipped(self.weight)

    def binary_input(self, x: Tensor) -> Tensor:
        """Return sign ∘ BNorm(x), by the batch's statistics in training and by `thresholds` in evaluation."""
        if self.training:
            return self._take_signs(x, None)
        # The comparison that kernels make, rather than sign(norm(x)): that rounds, and next to 0 the sign may be
        # another one.
        tau, flip = (self._along_channels(each) for each in thresholds(self))
        signs = as_signs((x >= tau) ^ flip, x.dtype)
        # Where gradients are wanted, they have the slope at BNorm(x), and the values are those of the thresholds all
        # the same.
        return self._take_signs(x, signs) if torch.is_grad_enabled() else signs

    def forward(self, x: Tensor) -> Tensor:
        self._check_input(x)
        signs = self.binary_input(x)
        # Without scales: W has its own sizes, and a scale would be learnt twice.
        if self.real_weights:
            return self._add_bias(self._multiply(signs, self.weight))
        product = self._multiply(signs, self.binary_weight())
        # Not in training, where the last bit of a sum decides nothing.
        if not self.training:
            product = round_through(product) if torch.is_grad_enabled() else product.round()
        self._check_output(product, x)
        return self._add_bias(product * self.scale())

    def _take_signs(self, x: Tensor, signs: Tensor | None) -> Tensor:
        normalised = self._normalize(x)
        if self.shift is not None:
            return rsign(normalised, self._along_channels(self.shift), signs)
        return (approx_sign if self.estimator == "approx_sign" else clipped)(normalised, signs)

    def _normalize(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def _multiply(self, signs: Tensor, weight: Tensor) -> Tensor:
        raise NotImplementedError

    def _along_channels(self, values: Tensor) -> Tensor:
        """Reshape one number for each channel so that it broadcasts to the input or output."""
        return values.reshape(-1, *[1] * self.dimensions)

    def _add_bias(self, values: Tensor) -> Tensor:
        return values if self.bias is None else values + self._along_channels(self.bias)

    def _check_input(self, x: Tensor) -> None:
        channels = self.norm.num_features
        if x.dim() != self.dimensions + 2 or x.shape[1] != channels:
            expected = f"(batch, {channels}, {'length' if self.dimensions == 1 else 'rows, columns'})"
            raise InvalidInput(f"{type(self).__name__} takes an input of shape {expected}, got {tuple(x.shape)}")

    def _check_output(self, product: Tensor, x: Tensor) -> None:
        size = tuple(product.shape[2:])
        if self.form in SPATIAL_FORMS and size != self.output_size:
            raise InvalidInput(
                f"{type(self).__name__} has a scale for outputs of {_join_sizes(self.output_size)}, but an input of "
                f"shape {tuple(x.shape)} gives outputs of {_join_sizes(size)}; scale='channel' fits all sizes"
            )


class BinaryConv2d(BinaryLayer):
    """This convolution of signs is scaled: (sign(W) ⊛ sign ∘ BNorm(x)) ⊙ w_scale, plus a bias if wanted.

    It replaces batch normalization, activation and convolution. Train it with `tamis.binary.two_stage.train_binary`, or
    in any loop that calls `tamis.binary.clip_weights(model)` after each step: a weight beyond [−1, 1] has no gradient
    to come back by.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as of `torch.nn.Conv2d`; zeros
            are padded.
        scale: "analytic", "channel", "full", "spatial" or "rank_one": see `tamis.binary.scales`.
        output_size: rows and columns of the output, which "full", "spatial" and "rank_one" have scales for.
        estimator: of the gradient of the input's signs, "clipped", "approx_sign" or "rsign": see
            `tamis.binary.estimators`.

    Example:
        >>> layer = BinaryConv2d(64, 128, 3, padding=1, scale="rank_one", output_size=(8, 8))
        >>> layer(torch.randn(16, 64, 8, 8)).shape
        torch.Size([16, 128, 8, 8])

    Reference: chee2021xnor.
    """

    convolve: Callable[..., Tensor] = staticmethod(F.conv2d)
    norm_class: type[nn.BatchNorm1d] | type[nn.BatchNorm2d] = nn.BatchNorm2d
    axes = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = False,
        *,
        scale: str = "channel",
        output_size: Sizes | None = None,
        estimator: str = "clipped",
    ) -> None:
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise InvalidInput(f"{groups=} must divide {in_channels=} and {out_channels=}")
        check_form(scale)
        size = () if output_size is None else self._as_sizes(output_size, "output_size")
        if scale in SPATIAL_FORMS and not size:
            raise InvalidInput(f"{scale=} has scales for rows and columns: give output_size, those of the output")
        kernel = self._as_sizes(kernel_size, "kernel_size")
        shape = (out_channels, in_channels // groups, *kernel)
        super().__init__(shape, self.norm_class(in_channels), bias, scale, size, estimator)
        self.in_channels, self.out_channels, self.kernel_size, self.groups = in_channels, out_channels, kernel, groups
        self.stride, self.dilation = self._as_sizes(stride, "stride"), self._as_sizes(dilation, "dilation")
        # After stride and dilation, of which "same" is computed.
        self.padding = self._as_padding(padding)

    def _multiply(self, signs: Tensor, weight: Tensor) -> Tensor:
        return self.convolve(signs, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def _as_sizes(self, value: Sizes, name: str) -> tuple[int, ...]:
        """Return one whole number for each axis."""
        sizes = (value,) * self.axes if isinstance(value, int) else tuple(value)
        # Padding may be 0; everything else begins at 1.
        if len(sizes) != self.axes or not all(isinstance(size, int) and size >= (name != "padding") for size in sizes):
            raise InvalidInput(f"{name} must be a whole number, or {self.axes} of them, got {value!r}")
        return sizes

    def _as_padding(self, padding: Sizes | str) -> tuple[int, ...]:
        if not isinstance(padding, str):
            return self._as_sizes(padding, "padding")
        if padding == "valid":
            return (0,) * self.axes
        # As many zeros as keep the size at a stride of 1, half of them on each side, which an odd number does not
        # allow.
        both_sides = [dilation * (size - 1) for dilation, size in zip(self.dilation, self.kernel_size, strict=True)]
        if padding != "same" or any(zeros % 2 for zeros in both_sides) or any(step != 1 for step in self.stride):
            raise InvalidInput(
                f"padding must be whole numbers, 'valid', or 'same' with odd kernels and a stride of 1, got "
                f"{padding!r} for a kernel of {_join_sizes(self.kernel_size)} and a stride of "
                f"{_join_sizes(self.stride)}"
            )
        return tuple(zeros // 2 for zeros in both_sides)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}", f"kernel_size={self.kernel_size}"]
        parts += [f"{name}={getattr(self, name)}" for name in ("stride", "padding", "dilation", "groups")]
        return ", ".join([*parts, f"bias={self.bias is not None}", *_list_repr_parts(self)])


class BinaryConv1d(BinaryConv2d):
    """This is `BinaryConv2d` for signals (batch, channels, length), with one number for its one axis.

    Example:
        >>> BinaryConv1d(16, 32, 5, padding=2, scale="rank_one", output_size=64)(torch.randn(8, 16, 64)).shape
        torch.Size([8, 32, 64])

    Reference: chee2021xnor.
    """

    convolve = staticmethod(F.conv1d)
    norm_class = nn.BatchNorm1d
    axes = 1


class BinaryLinear(BinaryLayer):
    """This linear layer of signs is scaled: (sign(W) sign ∘ BNorm(x)) ⊙ α, plus a bias if wanted.

    Args:
        in_features, out_features, bias: as of `torch.nn.Linear`; an input has features along its last axis.
        scale: as `BinaryConv2d` takes it; an output has neither rows nor columns, so that every learnt form is α.
        estimator: as `BinaryConv2d` takes it.

    Example:
        >>> BinaryLinear(256, 10)(torch.randn(32, 256)).shape
        torch.Size([32, 10])

    Reference: chee2021xnor.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        scale: str = "channel",
        estimator: str = "clipped",
    ) -> None:
        super().__init__((out_features, in_features), nn.BatchNorm1d(in_features), bias, scale, (), estimator)
        self.in_features, self.out_features = in_features, out_features

    def _normalize(self, x: Tensor) -> Tensor:
        # Flattened, because BatchNorm1d takes the second of three axes for the channels, and here they are last.
        return self.norm(x.reshape(-1, self.in_features)).reshape(x.shape)

    def _multiply(self, signs: Tensor, weight: Tensor) -> Tensor:
        return F.linear(signs, weight)

    def _check_input(self, x: Tensor) -> None:
        if x.dim() < 2 or x.shape[-1] != self.in_features:
            expected = f"(batch, …, {self.in_features})"
            raise InvalidInput(f"BinaryLinear takes an input of shape {expected}, got {tuple(x.shape)}")

    def _check_output(self, product: Tensor, x: Tensor) -> None:
        """Accept every shape, since the scale of a linear layer fits them all."""

    def extra_repr(self) -> str:
        parts = [f"{self.in_features}, {self.out_features}", f"bias={self.bias is not None}", *_list_repr_parts(self)]
        return ", ".join(parts)


def thresholds(layer: BinaryLayer) -> tuple[Tensor, Tensor]:
    """Compute τ and f of each input channel, with sign ∘ BNorm(x) = +1 exactly where (x ≥ τ_c) xor f_c.

    BNorm in evaluation is s x + t with s = γ/√(σ² + ε), t = β − s μ (less the shift, if the layer has one), in float64:

        s > 0:    x ≥ −t/s              τ is the least float32 that is ≥ −t/s; f = False
        s < 0:    not x > −t/s          τ is the least float32 that is > −t/s; f = True
        s = 0:    the sign of t         τ = −∞; f = (t < 0)

    A NaN is not ≥ τ, so that its sign is −1, and +1 where f.

    Args:
        layer: any binary layer.

    Returns:
        τ, float32 (float64 for a layer of float64), and f, bool, both of shape (channels,).

    Example:
        >>> tau, flip = thresholds(BinaryLinear(4, 2))
        >>> tau, flip
        (tensor([-0., -0., -0., -0.]), tensor([False, False, False, False]))

    Reference: chee2021xnor.
    """
    norm = layer.norm
    assert norm.running_mean is not None and norm.running_var is not None
    # In float64, so that τ is rounded once, where it becomes a float32.
    s = norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()
    t = norm.bias.detach().double() - s * norm.running_mean.double()
    if layer.shift is not None:
        t = t - layer.shift.detach().double()
    # Where s = 0 this is infinite or NaN, which the last line replaces.
    exact = -t / s
    # At least float32, in which half-precision inputs are exact and in which kernels compare.
    near = exact.to(torch.promote_types(norm.weight.dtype, torch.float32))
    # Rounded to nearest, `near` may lie on either side of the quotient: at most one step up gives the least number on
    # the right side. For s < 0 the comparison is strict, so that the quotient itself does not count either.
    after = torch.nextafter(near, near.new_full((), math.inf))
    tau = torch.where(torch.where(s > 0, near.double() < exact, near.double() <= exact), after, near)
    return torch.where(s == 0, -math.inf, tau), torch.where(s == 0, t < 0, s < 0)


def binary_layers(model: nn.Module) -> dict[str, BinaryLayer]:
    """Return the binary layers of a model, by name; raise InvalidInput where it has none."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be an nn.Module, got {type(model).__name__}")
    layers = {name: module for name, module in model.named_modules() if isinstance(module, BinaryLayer)}
    if not layers:
        raise InvalidInput(f"{type(model).__name__} has no binary layer: make some with tamis.binary.binarize(model)")
    return layers


@torch.no_grad()
def clip_weights(model: nn.Module) -> None:
    """Clip the real weights of binary layers to [−1, 1], in place; call this after each step of training.

    Signs stay as they are. A weight beyond has no gradient, and would keep its sign for ever.

    Example:
        >>> layer = BinaryLinear(2, 1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, -0.5]]))  # as after a step of the optimizer
        >>> clip_weights(layer)
        >>> layer.weight.tolist()
        [[1.0, -0.5]]

    Reference: rastegari2016xnor.
    """
    for layer in binary_layers(model).values():
        layer.weight.clamp_(-1, 1)


def _list_repr_parts(layer: BinaryLayer) -> list[str]:
    size = [f"output_size={layer.output_size}"] if layer.output_size else []
    return [f"scale={layer.form!r}", *size, f"estimator={layer.estimator!r}"]


def _join_sizes(sizes: tuple[int, ...]) -> str:
    return "×".join(map(str, sizes))
