"""`dg-lsp setup`: inspect this machine, offer the models that fit, and write the choice into the user's configuration."""
