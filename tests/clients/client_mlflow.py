"""MLflow: what the trainer logs is in the store."""

import mlflow
import pytest


def test_store(run_trainer, tmp_path, monkeypatch, row):
    """VaswaniTrainer with report_to="mlflow" into SQLite; metrics and parameters read back"""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    history = run_trainer("mlflow")
    mlflow.end_run()
    client = mlflow.MlflowClient()
    run = client.search_runs(["0"])[0]
    for name in ("loss", "learning_rate"):
        stored = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, name)}
        assert stored == pytest.approx({entry["step"]: entry[name] for entry in history if name in entry}, rel=1e-5)
        row.evidence(**{f"values_of_{name}": len(stored)})
    assert run.data.params["d_model"] == "128"
    assert "eval_loss" in run.data.metrics
