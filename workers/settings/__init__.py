"""Settings: one YAML file and the environment, read once, checked whole."""

from workers.settings.embedding import EMBEDDING_PROVIDERS, EmbeddingModel
from workers.settings.loading import Settings, from_mapping, load
from workers.settings.models import Configuration, ConfigurationFile
from workers.settings.sources import SOURCE_TYPES, SourceSettings
from workers.settings.yamlfile import SettingsError, SettingsProblem

__all__ = [
    "EMBEDDING_PROVIDERS",
    "SOURCE_TYPES",
    "Configuration",
    "ConfigurationFile",
    "EmbeddingModel",
    "Settings",
    "SettingsError",
    "SettingsProblem",
    "SourceSettings",
    "from_mapping",
    "load",
]
