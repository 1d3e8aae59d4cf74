"""Training: the model zoo, the shipped data and the training loop."""

from tamis.training.checkpoint import CHECKPOINT as CHECKPOINT
from tamis.training.checkpoint import kept_weights as kept_weights
from tamis.training.checkpoint import read_checkpoint as read_checkpoint
from tamis.training.data import Data as Data
from tamis.training.data import as_data as as_data
from tamis.training.data import data_folder as data_folder
from tamis.training.data import load_data as load_data
from tamis.training.data import parse_spec as parse_spec
from tamis.training.distributed import DEVICES as DEVICES
from tamis.training.distributed import Team as Team
from tamis.training.distributed import device_of as device_of
from tamis.training.distributed import join_team as join_team
from tamis.training.distributed import training_device as training_device
from tamis.training.loop import Epoch as Epoch
from tamis.training.loop import Settings as Settings
from tamis.training.loop import Trained as Trained
from tamis.training.loop import evaluate as evaluate
from tamis.training.loop import learning_rate_at as learning_rate_at
from tamis.training.loop import train as train
from tamis.training.model_check import check_fits as check_fits

__all__ = [
    "CHECKPOINT",
    "DEVICES",
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
    "kept_weights",
    "learning_rate_at",
    "load_data",
    "parse_spec",
    "read_checkpoint",
    "train",
    "training_device",
]
