"""NVML, GPM, cost."""
