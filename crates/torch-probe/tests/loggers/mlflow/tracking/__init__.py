from mlflow.tracking.client import MlflowClient  # noqa: F401
