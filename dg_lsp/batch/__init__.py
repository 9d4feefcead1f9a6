"""Headless infilling over files and folders."""
