"""Measure models: tasks, scores, baselines, calibration and speed."""
