"""Benchmarks of quality: tasks, scores, baselines."""
