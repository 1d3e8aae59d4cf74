"""Commands that work layer by layer begin here: the model, its calibration and its test data are read and compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.console import Console
from rich.text import Text

from tamis.cli.data_argument import check_calibration, load_test
from tamis.cli.model_argument import LoadedModel, open_network
from tamis.cli.options import CalibrationChoice, ModelChoice
from tamis.training import Data, load_data


@dataclass(frozen=True)
class ModelWithData(LoadedModel):
    """A model comes here with inputs to fit it to, and labelled data to measure it on where there is some."""

    calibration: Data | None = None
    test: Data | None = None


def open_with_data(original: ModelChoice, data: CalibrationChoice, device: torch.device | str = "cpu") -> ModelWithData:
    """Read a model and its data, and refuse data that does not fit it before the long work begins."""
    with Console(stderr=True).status(Text(f"tracing {original.model}")):
        examples = load_data(data.calibration, labelled=False)
        loaded = open_network(original, device, (examples.example,))
        check_calibration(examples, loaded.network, original.model)
        test = load_test(data.data, loaded.network, original.model)
    return ModelWithData(loaded.network, loaded.weights, loaded.compressed, loaded.module, examples, test)
