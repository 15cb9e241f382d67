"""Converts the storage format of Confluence and the HTML of Azure DevOps boards to Markdown."""
