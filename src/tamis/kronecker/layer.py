"""The matrix of this linear layer is a product of Kronecker-sparse factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from tamis.errors import InvalidInput
from tamis.kronecker.backends import BATCH_FIRST, as_matrix
from tamis.kronecker.inference_cache import Call, InferenceCache
from tamis.kronecker.multiply import as_autocast, check_layout, multiply
from tamis.kronecker.pattern import PatternLike, as_chain, nonzeros


@lru_cache(maxsize=64)
def _make_names(count: int) -> tuple[str, ...]:
    """Return the names of this many parameters in an `nn.ParameterList`."""
    return tuple(str(place) for place in range(count))


class KroneckerLayer(nn.Module):
    """This is the base of Kronecker layers, with W = K₁…K_L and a bias.

    Attributes:
        patterns: of the factors, leftmost first.
        factors: the weights of the factors, `factors[ℓ]` of shape (a, b, c, d) of `patterns[ℓ]`.
        bias: added to the product, or None.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        patterns: Iterable[PatternLike],
        bias: bool,
        backend: str | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.patterns = as_chain(patterns)
        self.backend = backend
        self._cache = InferenceCache()
        self.factors = nn.ParameterList(
            nn.Parameter(torch.empty(pattern.shape, device=device, dtype=dtype)) for pattern in self.patterns
        )
        outputs = self.patterns[0].rows
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(outputs, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights whose outputs vary as those of `nn.Linear` do, and the bias as `nn.Linear` does.

        With entries of variance v_ℓ, a factor multiplies the mean square of what it is given by c_ℓ v_ℓ. `nn.Linear`
        multiplies it by 1/3, so each of L factors does by 3^{−1/L}: it is uniform in ± √(3^{1 − 1/L}/c_ℓ). One factor
        is drawn as `nn.Linear` is. (The thesis has ± 1/√c_ℓ in appendix D.2.1, with which L factors give 3^{−L}.)
        """
        share = 3 ** (1 - 1 / len(self.patterns))
        for factor, pattern in zip(self.factors, self.patterns, strict=True):
            bound = math.sqrt(share / pattern.c)
            nn.init.uniform_(factor, -bound, bound)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.patterns[-1].columns)
            nn.init.uniform_(self.bias, -bound, bound)

    def dense_weight(self) -> Tensor:
        """Compute W = K₁…K_L as one matrix (outputs, inputs), as `nn.Linear` has it; differentiable."""
        matrices = [as_matrix(factor, pattern) for factor, pattern in zip(self.factors, self.patterns, strict=True)]
        return torch.linalg.multi_dot(matrices) if len(matrices) > 1 else matrices[0]

    @torch.no_grad()
    def set_factors(self, factors: Sequence[Tensor], bias: Tensor | None = None) -> None:
        """Copy these weights into the layer, and the bias if it has one."""
        if len(factors) != len(self.patterns):
            raise InvalidInput(f"there are {len(self.patterns)} factors to set, got {len(factors)}")
        for place, (factor, given) in enumerate(zip(self.factors, factors, strict=True)):
            if factor.shape != given.shape:
                raise InvalidInput(f"factor {place} has shape {tuple(factor.shape)}, got {tuple(given.shape)}")
            factor.copy_(given)
        if (bias is None) != (self.bias is None):
            has, given_one = ("no bias", "one") if self.bias is None else ("a bias", "none")
            raise InvalidInput(f"the layer has {has}, got {given_one}")
        if bias is not None and self.bias is not None:
            self.bias.copy_(bias)

    def train(self, mode: bool = True) -> Self:
        self._cache.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._cache.clear()  # `to` exchanges the weights
        return super()._apply(fn, recurse)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"_cache": InferenceCache(), **state})  # a layer that was pickled before there was a cache

    def _compute_product(self, x: Tensor, layout: str) -> Tensor:
        """Compute x Wᵀ + bias, or W x + bias, with the rightmost factor first."""
        if not (self.training or torch.compiler.is_compiling()):
            y = self._compute_cached_product(x, layout)
            if y is not None:
                return y
        for place in reversed(range(len(self.patterns))):
            x = multiply(x, self.factors[place], self.patterns[place], layout, self.backend)
        if self.bias is None:
            return x
        bias = as_autocast(self.bias)  # or the sum would be of the dtype of the bias, and not that of the product
        return x + (bias if layout == BATCH_FIRST else bias.reshape(-1, *[1] * (x.dim() - 1)))

    def _compute_cached_product(self, x: Tensor, layout: str) -> Tensor | None:
        """Compute the product from the cache, or return None where something other than parameters is multiplied."""
        # Not `self.bias`: nn.Module.__getattr__ would cost a microsecond, as much as a small product.
        factors: dict[str, Any] = self._modules["factors"]._parameters  # type: ignore[union-attr]
        if "bias" not in self._parameters or tuple(factors) != _make_names(len(self.patterns)):
            return None  # something computes them
        weights, bias = tuple(factors.values()), self._parameters["bias"]
        return self._cache.product(Call(x, weights, bias, self.patterns, layout, self.backend))

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self._cache.clear()  # it holds views of the weights, and torch refuses to swap a tensor that has any
        super()._load_from_state_dict(*arguments, **options)

    def _describe_parts(self) -> str:
        patterns = ", ".join(str(pattern) for pattern in self.patterns)
        rows, columns = self.patterns[0].rows, self.patterns[-1].columns
        share = nonzeros(self.patterns) / (rows * columns)
        return f"patterns=[{patterns}], weights={share:.1%} of dense, bias={self.bias is not None}"


class KroneckerLinear(KroneckerLayer):
    """This linear layer computes y = x Wᵀ + bias with W = K₁…K_L, in place of `nn.Linear`.

    It has Σ_ℓ a_ℓ b_ℓ c_ℓ d_ℓ weights and needs as many multiplications for a vector.

    Args:
        patterns: of the factors, `patterns[0]` of the leftmost, as `tamis.kronecker.monarch` and others give them.
        bias: whether there is one.
        layout: "batch_first": (…, inputs) → (…, outputs), or "batch_last": (inputs, …) → (outputs, …).
        backend: as of `tamis.kronecker.multiply`; None chooses.
        device, dtype: of the parameters.

    Example:
        >>> from tamis.kronecker import monarch
        >>> layer = KroneckerLinear(monarch(1536, 384, 4))
        >>> layer(torch.randn(2, 196, 384)).shape
        torch.Size([2, 196, 1536])

    Reference: gonon2024thesis.
    """

    def __init__(
        self,
        patterns: Iterable[PatternLike],
        bias: bool = True,
        layout: str = BATCH_FIRST,
        *,
        backend: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_layout(layout)
        super().__init__(patterns, bias, backend, device, dtype)
        self.layout = layout
        self.in_features, self.out_features = self.patterns[-1].columns, self.patterns[0].rows

    @property
    def weight(self) -> Tensor:
        """Return `dense_weight()`, multiplied out anew each time, for code that reads the weight of a linear layer."""
        return self.dense_weight()

    def forward(self, x: Tensor) -> Tensor:
        return self._compute_product(x, self.layout)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self._describe_parts()}"
