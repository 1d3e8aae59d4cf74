"""A network is represented as an immutable DAG of operations."""

from tamis.graph.autocast import without_autocast as without_autocast
from tamis.graph.batches import batches_from as batches_from
from tamis.graph.batches import batches_in as batches_in
from tamis.graph.batches import split_batch as split_batch
from tamis.graph.fixed_values import FixedValues as FixedValues
from tamis.graph.fold import fold_batch_norm as fold_batch_norm
from tamis.graph.fold import is_affine_batch_norm as is_affine_batch_norm
from tamis.graph.graph_match import check_same_graph as check_same_graph
from tamis.graph.graph_match import graph_lines as graph_lines
from tamis.graph.module_substitution import substitute_modules as substitute_modules
from tamis.graph.network import Network as Network
from tamis.graph.network import Node as Node
from tamis.graph.network import Ref as Ref
from tamis.graph.network import is_shape_arithmetic as is_shape_arithmetic
from tamis.graph.network import references_in as references_in
from tamis.graph.network import resolve as resolve
from tamis.graph.operations import Operation as Operation
from tamis.graph.operations import operations_of as operations_of
from tamis.graph.output_comparison import compare_outputs as compare_outputs
from tamis.graph.program_file import load_program as load_program
from tamis.graph.rescale import choose_scales as choose_scales
from tamis.graph.rescale import layer_weights as layer_weights
from tamis.graph.rescale import normalize as normalize
from tamis.graph.rescale import rescale as rescale
from tamis.graph.rescale import symmetries as symmetries
from tamis.graph.seen_samples import CELL_BITS as CELL_BITS
from tamis.graph.seen_samples import CELLS as CELLS
from tamis.graph.seen_samples import NOTHING_SEEN as NOTHING_SEEN
from tamis.graph.seen_samples import PURPOSES as PURPOSES
from tamis.graph.seen_samples import Array as Array
from tamis.graph.seen_samples import SeenSamples as SeenSamples
from tamis.graph.seen_samples import remember as remember
from tamis.graph.seen_samples import sample_digests as sample_digests
from tamis.graph.seen_samples import seen_by as seen_by
from tamis.graph.selection import Patterns as Patterns
from tamis.graph.selection import as_patterns as as_patterns
from tamis.graph.selection import lasting as lasting
from tamis.graph.selection import matches as matches
from tamis.graph.selection import selected as selected
from tamis.graph.symmetry import ONE as ONE
from tamis.graph.symmetry import Layer as Layer
from tamis.graph.tensor_bytes import tensor_bytes as tensor_bytes
from tamis.graph.trace import silence_torch as silence_torch
from tamis.graph.trace import tied_names as tied_names
from tamis.graph.trace import trace as trace
from tamis.graph.trace import trace_with_batch as trace_with_batch

__all__ = [
    "CELLS",
    "CELL_BITS",
    "NOTHING_SEEN",
    "ONE",
    "PURPOSES",
    "Array",
    "FixedValues",
    "Layer",
    "Network",
    "Node",
    "Operation",
    "Patterns",
    "Ref",
    "SeenSamples",
    "as_patterns",
    "batches_from",
    "batches_in",
    "check_same_graph",
    "choose_scales",
    "compare_outputs",
    "fold_batch_norm",
    "graph_lines",
    "is_affine_batch_norm",
    "is_shape_arithmetic",
    "lasting",
    "layer_weights",
    "load_program",
    "matches",
    "normalize",
    "operations_of",
    "references_in",
    "remember",
    "rescale",
    "resolve",
    "sample_digests",
    "seen_by",
    "selected",
    "silence_torch",
    "split_batch",
    "substitute_modules",
    "symmetries",
    "tensor_bytes",
    "tied_names",
    "trace",
    "trace_with_batch",
    "without_autocast",
]
