"""Recipes: chains of steps in a YAML file, run one after the other, and the search for one that fits a budget."""

from tamis.recipes.catalogue import Entry as Entry
from tamis.recipes.catalogue import entry_named as entry_named
from tamis.recipes.catalogue import recipe_path as recipe_path
from tamis.recipes.catalogue import shipped as shipped
from tamis.recipes.lock import Lock as Lock
from tamis.recipes.lock import model_facts as model_facts
from tamis.recipes.lock import sha256_of as sha256_of
from tamis.recipes.plan import run_plan as run_plan
from tamis.recipes.quantities import as_bytes as as_bytes
from tamis.recipes.quantities import as_fraction as as_fraction
from tamis.recipes.quantities import without_percent as without_percent
from tamis.recipes.run import CERTIFICATE as CERTIFICATE
from tamis.recipes.run import REPORT as REPORT
from tamis.recipes.run import SMALL as SMALL
from tamis.recipes.run import Compression as Compression
from tamis.recipes.run import check_plan as check_plan
from tamis.recipes.run import code_named_in as code_named_in
from tamis.recipes.run import compress as compress
from tamis.recipes.run import device_for as device_for
from tamis.recipes.run import network_of as network_of
from tamis.recipes.run import requirements_of as requirements_of
from tamis.recipes.schema import DataSection as DataSection
from tamis.recipes.schema import Recipe as Recipe
from tamis.recipes.schema import blamed as blamed
from tamis.recipes.schema import first_to_tell as first_to_tell
from tamis.recipes.schema import in_document as in_document
from tamis.recipes.schema import json_schema as json_schema
from tamis.recipes.schema import read_recipe as read_recipe
from tamis.recipes.schema import recipe_of as recipe_of
from tamis.recipes.schema import wish as wish
from tamis.recipes.splits import Splits as Splits
from tamis.recipes.splits import load_splits as load_splits
from tamis.recipes.state import DELTA as DELTA
from tamis.recipes.state import State as State
from tamis.recipes.workspace import FOLDER as FOLDER
from tamis.recipes.workspace import QUESTION as QUESTION
from tamis.recipes.workspace import Workspace as Workspace
from tamis.recipes.yaml_document import Document as Document
from tamis.recipes.yaml_document import Path_ as Path_
from tamis.recipes.yaml_document import RecipeError as RecipeError
from tamis.recipes.yaml_document import written as written

__all__ = [
    "CERTIFICATE",
    "DELTA",
    "FOLDER",
    "QUESTION",
    "REPORT",
    "SMALL",
    "Compression",
    "DataSection",
    "Document",
    "Entry",
    "Lock",
    "Path_",
    "Recipe",
    "RecipeError",
    "Splits",
    "State",
    "Workspace",
    "as_bytes",
    "as_fraction",
    "blamed",
    "check_plan",
    "code_named_in",
    "compress",
    "device_for",
    "entry_named",
    "first_to_tell",
    "in_document",
    "json_schema",
    "load_splits",
    "model_facts",
    "network_of",
    "read_recipe",
    "recipe_of",
    "recipe_path",
    "requirements_of",
    "run_plan",
    "sha256_of",
    "shipped",
    "wish",
    "without_percent",
    "written",
]
