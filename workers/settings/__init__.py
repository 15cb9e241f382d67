"""Settings: one YAML file and the environment, read once, checked whole."""

from workers.settings.embedding import EMBEDDING_PROVIDERS, EmbeddingModel
from workers.settings.loading import Settings, load
from workers.settings.models import RagSettings
from workers.settings.problems import Problem, SettingsError
from workers.settings.rendering import effective, initial_file, reference, show
from workers.settings.services import AzureDevOpsSource, ConfluenceSource, ServiceSource
from workers.settings.source_list import SOURCE_TYPES
from workers.settings.sources import FileSource, SourceSettings

__all__ = [
    "EMBEDDING_PROVIDERS",
    "SOURCE_TYPES",
    "AzureDevOpsSource",
    "ConfluenceSource",
    "EmbeddingModel",
    "FileSource",
    "Problem",
    "RagSettings",
    "ServiceSource",
    "Settings",
    "SettingsError",
    "SourceSettings",
    "effective",
    "initial_file",
    "load",
    "reference",
    "show",
]
