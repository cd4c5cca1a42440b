"""The recipe from the command line, killed and taken up again."""

import re
import signal
import time
from pathlib import Path

import psutil
import pytest
import yaml
from helpers import REPOSITORY, TINY, call_recipe, start_python, write_splits
from runs import training_options

from vaswani_transformer.data.prepared_directory import load_prepared


CONFIGS = REPOSITORY / "recipes" / "configs"
MANY_PROCESSES = """
import runpy, sys
from vaswani_transformer.data import preparation
preparation._PAIRS_PER_PROCESS = 100
sys.argv = {arguments!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def settings(tmp_path) -> dict:
    return {
        **TINY,
        **write_splits(tmp_path, train=3000, validation=12, test=12),
        "dropout": 0.0,
        "max_steps": 2,
        "save_steps": 1,
        "eval_strategy": "no",
        "num_proc": 2,
        "output_dir": str(tmp_path / "run"),
        "prepared": str(tmp_path / "prepared"),
    }


@pytest.fixture
def main(tmp_path):
    """Runs the recipe's `main` in this process."""

    def run(settings: dict, *overrides: str) -> None:
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        call_recipe("prepare_data.py", "--config", tmp_path / "config.yaml", *overrides)

    return run


def test_the_recipe_prepares_once_and_reports(main, settings, capsys):
    main(settings)
    report = capsys.readouterr().out
    assert "train: 3,000 sentence pairs (dropped: empty 0, too_long 0, ratio 0)\n" in report
    assert "test: 12 sentence pairs\n" in report
    assert re.search(rf"{settings['prepared']} is complete, after \d+\.\d seconds", report)

    def times() -> dict[Path, int]:
        files = Path(settings["prepared"]).rglob("*")
        return {path: path.stat().st_mtime_ns for path in files if path.is_file()}

    before = times()
    main(settings, "--num_proc", "1", "--output_dir", "elsewhere", "--max_steps", "9")  # of no importance to the data
    assert times() == before
    with pytest.raises(SystemExit, match=r"^prepare_data.py: .*differs in vocab_size \(320 then, 330 now\)"):
        main(settings, "--vocab_size", "330")
    assert times() == before


@pytest.mark.system
def test_a_killed_preparation_leaves_no_process_behind_and_goes_on(main, settings, tmp_path):
    program, config = tmp_path / "program.py", tmp_path / "killed.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    arguments = [str(REPOSITORY / "recipes" / "prepare_data.py"), "--config", str(config)]
    program.write_text(MANY_PROCESSES.format(arguments=arguments), encoding="utf-8")
    process = start_python([program])
    workers: list[psutil.Process] = []
    while len(workers) < 3:  # two that encode, and the manager of their queue
        assert process.poll() is None, "it was finished before it could be killed"
        workers = psutil.Process(process.pid).children()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert psutil.wait_procs(workers, timeout=60)[1] == []

    whole = {**settings, "prepared": str(tmp_path / "whole")}
    for each in (settings, whole):
        main(each)
    killed, whole = (load_prepared(each["prepared"]).train for each in (settings, whole))
    assert killed.to_list() == whole.to_list()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prepared": None}, "prepared: name the directory"),
        ({"train": ["no-such.en", "no-such.de"]}, "No such file or directory: 'no-such.en'"),
        ({"vocab_size": 30000}, "the corpus supports only"),
    ],
)
def test_mistakes_are_errors_before_anything_is_written(main, settings, tmp_path, changes, message):
    with pytest.raises(SystemExit, match=f"^prepare_data.py: .*{message}.*$"):  # one line
        main({**settings, **changes})
    assert not list(tmp_path.glob("prepared/[!.]*/*.arrow"))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("wmt14*.yaml")), ids=lambda path: path.stem)
def test_the_configurations_of_wmt14_prepare_base_and_big_in_one_place(path, monkeypatch):
    data, _, _ = training_options(["--config", str(path), "--precision", "float32"])
    other = Path(str(path).replace("base", "BIG").replace("big", "base").replace("BIG", "big"))
    sibling, _, _ = training_options(["--config", str(other), "--precision", "float32"])
    assert data == sibling
    assert data.sources == {split: ["wmt/wmt14"] for split in ("train", "validation", "test")}
    assert set(data.dataset_config.split("-")) == {data.source_language, data.target_language}
    assert data.prepared == f"runs/wmt14_en_{data.target_language}_data"
    assert data.tokenizer_sample < 4_500_000
