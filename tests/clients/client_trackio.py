"""trackio: what the trainer logs is in the store."""

import json
import sqlite3

import pytest


def test_store(run_trainer, tmp_path, monkeypatch, row):
    """VaswaniTrainer with report_to="trackio", without a Space; the local store read back"""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    history = run_trainer("trackio", project="clients", trackio_space_id=None)
    with sqlite3.connect(tmp_path / "trackio" / "clients.db") as store:
        logged = [json.loads(metrics) for (metrics,) in store.execute("SELECT metrics FROM metrics ORDER BY id")]
    for name in ("loss", "learning_rate"):
        stored = [metrics[f"train/{name}"] for metrics in logged if f"train/{name}" in metrics]
        assert stored == pytest.approx([entry[name] for entry in history if name in entry], rel=1e-5)
        row.evidence(**{f"values_of_{name}": len(stored)})
    assert any("eval/loss" in metrics for metrics in logged)
