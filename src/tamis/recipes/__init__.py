"""A recipe is a chain of steps in a YAML file; a budget asks for a search for the network that fits it."""

from tamis.recipes.catalogue import Entry as Entry
from tamis.recipes.catalogue import entry_named as entry_named
from tamis.recipes.catalogue import list_shipped as list_shipped
from tamis.recipes.catalogue import recipe_path as recipe_path
from tamis.recipes.compression import compress as compress
from tamis.recipes.lock import Lock as Lock
from tamis.recipes.lock import model_facts as model_facts
from tamis.recipes.lock import sha256_of as sha256_of
from tamis.recipes.output_folder import CERTIFICATE as CERTIFICATE
from tamis.recipes.output_folder import REPORT as REPORT
from tamis.recipes.output_folder import SMALL as SMALL
from tamis.recipes.output_folder import Compression as Compression
from tamis.recipes.plan import run_plan as run_plan
from tamis.recipes.prepared_model import PreparedModel as PreparedModel
from tamis.recipes.prepared_model import prepare_model as prepare_model
from tamis.recipes.quantities import as_bytes as as_bytes
from tamis.recipes.quantities import as_fraction as as_fraction
from tamis.recipes.quantities import without_percent as without_percent
from tamis.recipes.request import code_options as code_options
from tamis.recipes.request import parse_requirements as parse_requirements
from tamis.recipes.schema import DataSection as DataSection
from tamis.recipes.schema import Recipe as Recipe
from tamis.recipes.schema import json_schema as json_schema
from tamis.recipes.schema import read_recipe as read_recipe
from tamis.recipes.schema import recipe_of as recipe_of
from tamis.recipes.splits import Splits as Splits
from tamis.recipes.splits import load_splits as load_splits
from tamis.recipes.state import DELTA as DELTA
from tamis.recipes.state import Context as Context
from tamis.recipes.state import State as State
from tamis.recipes.validation import validate_section as validate_section
from tamis.recipes.workspace import WORK_FOLDER as WORK_FOLDER
from tamis.recipes.workspace import WORK_LOCK as WORK_LOCK
from tamis.recipes.workspace import Workspace as Workspace
from tamis.recipes.yaml_document import Document as Document
from tamis.recipes.yaml_document import KeyPath as KeyPath
from tamis.recipes.yaml_document import RecipeError as RecipeError
from tamis.recipes.yaml_document import format_path as format_path

__all__ = [
    "CERTIFICATE",
    "DELTA",
    "REPORT",
    "SMALL",
    "WORK_FOLDER",
    "WORK_LOCK",
    "Compression",
    "Context",
    "DataSection",
    "Document",
    "Entry",
    "KeyPath",
    "Lock",
    "PreparedModel",
    "Recipe",
    "RecipeError",
    "Splits",
    "State",
    "Workspace",
    "as_bytes",
    "as_fraction",
    "code_options",
    "compress",
    "entry_named",
    "format_path",
    "json_schema",
    "list_shipped",
    "load_splits",
    "model_facts",
    "parse_requirements",
    "prepare_model",
    "read_recipe",
    "recipe_of",
    "recipe_path",
    "run_plan",
    "sha256_of",
    "validate_section",
    "without_percent",
]
