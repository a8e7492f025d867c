"""Probe, memory, planner, knobs."""
