"""What an attempt is given: an export of a pinned corpus, repository tools, MCP servers."""
