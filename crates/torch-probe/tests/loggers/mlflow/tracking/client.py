class MlflowClient:
    def log_metric(self, run_id, key, value, timestamp=None, step=None):
        return f"{run_id}: {key}"

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        return len(metrics)
