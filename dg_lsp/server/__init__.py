"""The language server. pygls and lsprotocol live here only."""
