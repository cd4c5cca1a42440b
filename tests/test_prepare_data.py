"""The recipe from the command line, killed and taken up again."""

import re
import signal
import time
from pathlib import Path

import psutil
import pytest
from helpers import REPOSITORY, TINY, call_recipe, option_words, refusal, start_python, write_splits

from vaswani_transformer.data.prepared_directory import load_prepared


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


def prepare(settings: dict) -> None:
    call_recipe("prepare_data.py", *option_words(settings))


def test_the_recipe_prepares_once_and_reports(settings, capsys):
    prepare(settings)
    report = capsys.readouterr().out
    assert "train: 3,000 sentence pairs (dropped: empty 0, too_long 0, ratio 0)\n" in report
    assert "test: 12 sentence pairs\n" in report
    assert "also in the training corpus: " in report
    assert re.search(rf"{settings['prepared']} is complete, after \d+\.\d seconds", report)

    def times() -> dict[Path, int]:
        files = Path(settings["prepared"]).rglob("*")
        return {path: path.stat().st_mtime_ns for path in files if path.is_file()}

    before = times()
    of_no_importance = {"num_proc": 1, "output_dir": "elsewhere", "max_steps": 9}
    prepare({**settings, **of_no_importance})
    assert times() == before
    message = refusal("prepare_data.py", *option_words({**settings, "vocab_size": 330}))
    assert "differs in vocab_size (320 then, 330 now)" in message
    assert times() == before


@pytest.mark.system
def test_a_killed_preparation_leaves_no_process_behind_and_goes_on(settings, tmp_path):
    program = tmp_path / "program.py"
    arguments = [str(REPOSITORY / "recipes" / "prepare_data.py"), *option_words(settings)]
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
        prepare(each)
    killed, whole = (load_prepared(each["prepared"]).train for each in (settings, whole))
    assert killed.to_list() == whole.to_list()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prepared": None}, "prepared: name the directory"),
        ({"train": ["no-such.en", "no-such.de"]}, "there is no file or directory no-such.en"),
        ({"vocab_size": 30000}, "the corpus supports only"),
    ],
)
def test_mistakes_are_errors_before_anything_is_written(settings, tmp_path, changes, message):
    assert message in refusal("prepare_data.py", *option_words({**settings, **changes}))
    assert not list(tmp_path.glob("prepared/[!.]*/*.arrow"))
