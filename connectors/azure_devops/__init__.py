"""Work items of Azure DevOps Boards as documents, on Services and Server."""

from __future__ import annotations

from connectors.azure_devops.options import AzureDevOpsOptions, base_url_of
from connectors.azure_devops.source import AzureDevOpsSource

__all__ = ["AzureDevOpsOptions", "AzureDevOpsSource", "base_url_of"]
