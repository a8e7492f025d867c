from mlflow.tracking.client import MlflowClient


def log_metric(key, value, step=None):
    return MlflowClient().log_metric(run_id="active", key=key, value=value, step=step)


def log_metrics(metrics, step=None):
    if not isinstance(metrics, dict):
        raise TypeError("metrics is no dictionary")
    return MlflowClient().log_batch(run_id="active", metrics=())
