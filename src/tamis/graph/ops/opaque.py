"""These operations stay opaque; `untouched` says why their weights are never compressed."""

from __future__ import annotations

import torch

from tamis.graph.ops.base import Opaque, Targets
from tamis.graph.ops.norm import NORMALIZATION

aten = torch.ops.aten


class Embedding(Opaque):
    """An embedding is a table that is looked up by indices."""

    targets: Targets = (aten.embedding.default, aten.embedding_bag.default, aten.embedding_bag.padding_idx)
    untouched = "an embedding: a table that is looked up, where no layer multiplies by it"


class LSTM(Opaque):
    """One operation is a whole LSTM, or one step of it."""

    targets: Targets = (aten.lstm.input, aten.lstm.data, aten.lstm_cell.default)
    untouched = "of an LSTM, whose steps torch keeps in one operation"


class GRU(Opaque):
    """One operation is a whole GRU, or one step of it."""

    targets: Targets = (aten.gru.input, aten.gru.data, aten.gru_cell.default)
    untouched = "of a GRU, whose steps torch keeps in one operation"


class RNN(Opaque):
    """One operation is a whole recurrent layer with tanh or ReLU, or one step of it."""

    targets: Targets = (
        aten.rnn_tanh.input,
        aten.rnn_tanh.data,
        aten.rnn_tanh_cell.default,
        aten.rnn_relu.input,
        aten.rnn_relu.data,
        aten.rnn_relu_cell.default,
    )
    untouched = "of a recurrent layer, whose steps torch keeps in one operation"


class Normalization(Opaque):
    """These normalizations use statistics of the data itself."""

    targets: Targets = (aten.layer_norm.default, aten.group_norm.default, aten.instance_norm.default)
    untouched = NORMALIZATION
