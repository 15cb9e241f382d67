"""Pages of Confluence, Cloud and Server/Data Center, as documents."""
