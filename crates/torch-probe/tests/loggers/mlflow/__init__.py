"""Stands in for MLflow: the same functions in the same modules, bound to each other in the same way."""

from mlflow.tracking.fluent import log_metric, log_metrics  # noqa: F401
