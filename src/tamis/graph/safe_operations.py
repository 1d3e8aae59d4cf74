"""A file may call only those operations of torch that are for inference and check the indices they are given.

Kernels for gradients, for sparse matrices, and those whose name says that they are unsafe take indices and pivots from
tensors as they are, and would write wherever these say. So the list is of what may be called, and not of what may not.
"""

from __future__ import annotations

from torch._ops import OpOverload

from tamis.graph.ops import REGISTRY, Opaque

POINTWISE = """
    absolute acos acosh addcdiv addcmul __and__ angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin atan2
    atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clip complex
    conj conj_physical copysign cos cosh deg2rad digamma divide erf erfc erfinv exp exp2 expm1
    fake_quantize_per_channel_affine fake_quantize_per_tensor_affine fix float_power floor floor_divide fmax fmin fmod
    frac gelu glu hardshrink hardsigmoid hardswish heaviside hypot i0 igamma igammac imag ldexp lerp lgamma log log10
    log1p log2 log_sigmoid logaddexp logaddexp2 logit masked_fill mish multiply mvlgamma nan_to_num negative nextafter
    __or__ polar polygamma positive pow prelu rad2deg real reciprocal remainder round rrelu rsqrt selu sgn sigmoid
    sign signbit silu sinc sinh softplus softshrink special_entr special_erf special_erfc special_erfcx special_erfinv
    special_exp2 special_expit special_expm1 special_gammaln special_i0 special_i0e special_i1 special_i1e
    special_log1p special_log_ndtr special_logit special_ndtr special_ndtri special_round special_sinc special_xlog1py
    special_xlogy sqrt square subtract tan threshold true_divide trunc where xlogy __xor__
"""
COMPARISONS = """
    allclose eq equal ge greater greater_equal gt isclose isfinite isin isinf isnan isneginf isposinf isreal le less
    less_equal logical_and logical_not logical_or logical_xor lt ne not_equal
"""
REDUCTIONS = """
    all aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum diff dist frobenius_norm histc
    linalg_norm linalg_vector_norm _log_softmax log_softmax logcumsumexp logsumexp mode msort nanmean nanmedian
    nanquantile nansum norm prod quantile _safe_softmax _softmax softmax special_log_softmax special_logsumexp
    special_softmax std std_mean sum_to_size trace _unique2 unique_consecutive unique_dim var var_mean
"""
PRODUCTS = """
    addbmm addmv addr baddbmm bilinear cdist chain_matmul convolution cosine_similarity cross dot ger inner kron
    linalg_cross linalg_matmul linalg_multi_dot linalg_vecdot mv outer pairwise_distance scaled_dot_product_attention
    tensordot vdot
"""
NORMALISATIONS = """
    alpha_dropout dropout feature_alpha_dropout feature_dropout group_norm instance_norm layer_norm
    _native_batch_norm_legit_no_training native_dropout native_group_norm native_layer_norm renorm rms_norm _weight_norm
"""
POOLING = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d affine_grid_generator grid_sampler grid_sampler_2d grid_sampler_3d
    max_unpool2d _upsample_bicubic2d_aa _upsample_bilinear2d_aa
"""
RECURRENT = "gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell"
FOURIER = """
    fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft
    fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn hamming_window hann_window istft stft
"""
SHAPES = """
    adjoint alias alias_copy atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to chunk clone
    col2im column_stack concat concatenate contiguous copy detach detach_copy diag diag_embed diagflat diagonal
    diagonal_copy dsplit dstack expand_as expand_copy flatten fliplr flipud hsplit hstack lift lift_fresh
    lift_fresh_copy mH mT matrix_H meshgrid moveaxis movedim narrow narrow_copy native_channel_shuffle numpy_T
    _pad_circular _pad_enum permute_copy ravel repeat_interleave reshape_as resolve_conj resolve_neg rot90 select_copy
    slice_copy split_copy split_with_sizes_copy squeeze_copy swapaxes swapdims t_copy tensor_split tile to _to_copy
    transpose_copy tril triu type_as unbind_copy unflatten unfold unfold_copy _unsafe_view unsqueeze_copy view view_as
    view_as_complex view_as_real view_copy vsplit vstack
"""
INDEXING = """
    argwhere bincount bucketize diagonal_scatter embedding gather index_add index_copy index_fill index_put
    index_reduce masked_scatter masked_select nonzero nonzero_numpy nonzero_static one_hot put scatter scatter_add
    scatter_reduce searchsorted select_scatter slice_scatter take take_along_dim
"""
CREATION = """
    arange bernoulli empty empty_like empty_permuted exponential eye fill full full_like linspace logspace multinomial
    new_empty new_full new_ones new_zeros normal normal_functional ones ones_like rand rand_like randint randint_like
    randn randn_like randperm scalar_tensor tril_indices triu_indices uniform zero zeros zeros_like
"""
# What torch.export itself adds to a graph: sizes, and checks of them; and what it makes of a change of dtype.
EXPORTED = """
    _assert_async _assert_scalar _assert_tensor_metadata convert_element_type _functional_assert_async
    _functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size iota item
    _local_scalar_dense numel size sym_constrain_range sym_constrain_range_for_size sym_numel sym_size
    sym_storage_offset sym_stride view_of
"""
# Lengths of packed sequences, which these read from memory as if they always lay side by side.
UNCHECKED = frozenset(f"{name}.data" for name in RECURRENT.split())


def is_safe(operation: OpOverload) -> bool:
    """Return whether an operation, or its out-of-place form, is for inference and checks its arguments.

    Example:
        >>> is_safe(torch.ops.aten.max_pool2d.default), is_safe(torch.ops.aten.max_pool2d_with_indices_backward.default)
        (True, False)
    """
    # Names cover all overloads, which share their checks, except those in UNCHECKED.
    name = _name(operation)
    if any(argument.is_out for argument in operation._schema.arguments):  # resizes a tensor of the graph
        return False
    return (name in NAMES or name.removesuffix("_") in NAMES) and f"{name}.{operation._overloadname}" not in UNCHECKED


def _name(operation: OpOverload) -> str:
    return operation._schema.name.partition("::")[2]


NAMES = frozenset(
    name
    for group in (
        *(POINTWISE, COMPARISONS, REDUCTIONS, PRODUCTS, NORMALISATIONS, POOLING, RECURRENT, FOURIER),
        *(SHAPES, INDEXING, CREATION, EXPORTED),
    )
    for name in group.split()
) | {_name(target) for target, op in REGISTRY.items() if isinstance(target, OpOverload) and not isinstance(op, Opaque)}
