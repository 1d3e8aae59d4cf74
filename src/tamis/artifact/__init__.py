"""What compression leaves behind: the `Compressed` network, its masks, and the `.tamis` file."""

from tamis.artifact import format as format
from tamis.artifact import seen_filter as seen_filter
from tamis.artifact.atomic_file import replace_file as replace_file
from tamis.artifact.code_length import message as message
from tamis.artifact.codes import FEWEST_LEVELS as FEWEST_LEVELS
from tamis.artifact.codes import MOST_LEVELS as MOST_LEVELS
from tamis.artifact.codes import Codes as Codes
from tamis.artifact.codes import cast_scales as cast_scales
from tamis.artifact.compressed import Compressed as Compressed
from tamis.artifact.compressed import compressed_of as compressed_of
from tamis.artifact.compressed import load as load
from tamis.artifact.export import example_inputs as example_inputs
from tamis.artifact.export import write_program as write_program
from tamis.artifact.file import File as File
from tamis.artifact.file_lock import try_lock as try_lock
from tamis.artifact.fingerprint import fingerprint as fingerprint
from tamis.artifact.fingerprint import fingerprint_of_values as fingerprint_of_values
from tamis.artifact.float_layers import sentences as sentences
from tamis.artifact.format import stored_bytes as stored_bytes
from tamis.artifact.json_file import read_json_object as read_json_object
from tamis.artifact.masks import Hold as Hold
from tamis.artifact.masks import Masks as Masks
from tamis.artifact.masks import named_parameters as named_parameters
from tamis.artifact.rebuild import rebuild_layers as rebuild_layers
from tamis.artifact.rebuild import rebuilds_layers as rebuilds_layers
from tamis.artifact.summary import NOTHING as NOTHING
from tamis.artifact.summary import errors_of as errors_of
from tamis.artifact.summary import find_weights as weights_of
from tamis.artifact.torch_archive import check_uncompressed as check_uncompressed
from tamis.artifact.torch_archive import load_archive as load_archive
from tamis.artifact.weights_file import save_weights as save_weights
from tamis.artifact.weights_file import seen_in as seen_in

__all__ = [
    "FEWEST_LEVELS",
    "MOST_LEVELS",
    "NOTHING",
    "Codes",
    "Compressed",
    "File",
    "Hold",
    "Masks",
    "cast_scales",
    "check_uncompressed",
    "compressed_of",
    "errors_of",
    "example_inputs",
    "fingerprint",
    "fingerprint_of_values",
    "format",
    "load",
    "load_archive",
    "message",
    "named_parameters",
    "read_json_object",
    "rebuild_layers",
    "rebuilds_layers",
    "replace_file",
    "save_weights",
    "seen_filter",
    "seen_in",
    "sentences",
    "stored_bytes",
    "try_lock",
    "weights_of",
    "write_program",
]
