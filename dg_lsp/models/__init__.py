"""The embedded checkpoint, as package data."""
