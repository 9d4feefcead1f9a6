"""`dg-lsp setup`: look at what this machine has, offer the models that fit, and write the choice into the user's file."""
