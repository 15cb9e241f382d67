"""Settings: one YAML file and the environment, read once, checked whole."""

from workers.settings.loading import Settings, load
from workers.settings.models import EMBEDDING_PROVIDERS, RagSettings
from workers.settings.problems import Problem, SettingsError
from workers.settings.reference import reference
from workers.settings.rendering import effective, initial_file, show
from workers.settings.sources import SOURCE_TYPES, FileSource, SourceSettings

__all__ = [
    "EMBEDDING_PROVIDERS",
    "SOURCE_TYPES",
    "FileSource",
    "Problem",
    "RagSettings",
    "Settings",
    "SettingsError",
    "SourceSettings",
    "effective",
    "initial_file",
    "load",
    "reference",
    "show",
]
