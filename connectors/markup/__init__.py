"""Storage format of Confluence and the HTML of Azure DevOps boards, made Markdown."""
