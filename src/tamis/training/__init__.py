"""Classifiers are trained by one loop, with its settings, datasets by name, and a zoo of plain PyTorch models.

What users need:

- `load_data("digits:test")` reads a dataset into a `Data`; `as_data` also takes tensors, torch Datasets and loaders.
- `train(model, data, Settings(epochs=20))` returns a `Trained`: a trained copy of the model, and one `Epoch` of figures
  for each epoch. `load_epoch_weights` reads the weights of epochs that it was told to keep.
- `evaluate(model, data)` measures the accuracy.
- `models` has the zoo, as `models.mlp()` or by name in `models.MODELS`.
- `Constraint` is the protocol of what training can enforce after every step; `tamis.l1inf.L1InfConstraint` is one.

The rest is for other packages of tamis: checkpoints, and the processes that train together under torchrun.

Example:
    >>> from tamis.training import Settings, evaluate, load_data, models, train
    >>> settings = Settings(epochs=2, batch=32)
    >>> trained = train(models.mlp(), load_data("digits:train[:200]"), settings, progress=False)
    >>> trained.history[-1].loss < trained.history[0].loss
    True
    >>> accuracy = evaluate(trained.model, load_data("digits:test"))
"""

from tamis.training import models as models
from tamis.training.checkpoint import CHECKPOINT as CHECKPOINT
from tamis.training.checkpoint import load_epoch_weights as load_epoch_weights
from tamis.training.checkpoint import read_checkpoint as read_checkpoint
from tamis.training.constraint import Constraint as Constraint
from tamis.training.data import Data as Data
from tamis.training.data_loading import as_data as as_data
from tamis.training.data_loading import load_data as load_data
from tamis.training.data_spec import data_folder as data_folder
from tamis.training.data_spec import parse_spec as parse_spec
from tamis.training.distributed import DEVICES as DEVICES
from tamis.training.distributed import Team as Team
from tamis.training.distributed import device_of as device_of
from tamis.training.distributed import join_team as join_team
from tamis.training.distributed import training_device as training_device
from tamis.training.evaluation import evaluate as evaluate
from tamis.training.loop import Epoch as Epoch
from tamis.training.loop import Trained as Trained
from tamis.training.loop import train as train
from tamis.training.model_check import check_fits as check_fits
from tamis.training.settings import Settings as Settings
from tamis.training.settings import learning_rate_at as learning_rate_at

__all__ = [
    "CHECKPOINT",
    "DEVICES",
    "Constraint",
    "Data",
    "Epoch",
    "Settings",
    "Team",
    "Trained",
    "as_data",
    "check_fits",
    "data_folder",
    "device_of",
    "evaluate",
    "join_team",
    "learning_rate_at",
    "load_data",
    "load_epoch_weights",
    "models",
    "parse_spec",
    "read_checkpoint",
    "train",
    "training_device",
]
