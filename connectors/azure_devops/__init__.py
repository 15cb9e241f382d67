"""Work items of Azure DevOps Boards as documents, on Services and Server."""
