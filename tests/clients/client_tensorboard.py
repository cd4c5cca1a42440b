"""TensorBoard: what the trainer logs is in the event file."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def test_event_file(run_trainer, tmp_path, monkeypatch, row):
    """VaswaniTrainer with report_to="tensorboard"; the event file read back"""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    history = run_trainer("tensorboard")
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    for name in ("loss", "learning_rate"):
        stored = {event.step: event.value for event in events.Scalars(f"train/{name}")}
        assert stored == pytest.approx({entry["step"]: entry[name] for entry in history if name in entry}, rel=1e-5)
        row.evidence(**{f"values_of_{name}": len(stored)})
    assert "eval/loss" in events.Tags()["scalars"]
