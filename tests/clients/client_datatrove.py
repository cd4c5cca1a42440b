"""datatrove: a run that is killed and started again writes each document once, translated as by the pipeline."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

from helpers import REPOSITORY
from transformers import pipeline

from vaswani_transformer.data.phrasebook import phrasebook


def test_a_task_is_killed(model_directory, tmp_path, row):
    """Reader, translation, writer; killed in the middle, then started again"""
    texts = [english for english, _ in phrasebook("test")]
    files, repeated = 6, 20
    (tmp_path / "corpus").mkdir()
    for number in range(files):
        rows = [{"id": f"{number}-{k}", "text": text} for k, text in enumerate(texts[number::files] * repeated)]
        content = "".join(json.dumps(each) + "\n" for each in rows)
        (tmp_path / "corpus" / f"{number}.jsonl").write_text(content, encoding="utf-8")
    options = ["--model", model_directory, "--input", tmp_path / "corpus", "--output", tmp_path / "out"]
    recipe = str(REPOSITORY / "recipes" / "cluster" / "datatrove_step.py")
    command = [sys.executable, recipe, *map(str, options), "--tasks", str(files)]
    completions = tmp_path / "out" / "logs" / "completions"
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while process.poll() is None and len(list(completions.glob("*"))) < 2:
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    completed = len(list(completions.glob("*")))
    assert 2 <= completed < files
    subprocess.run(command, check=True, timeout=600)
    written = {}
    for path in sorted((tmp_path / "out" / "documents").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                document = json.loads(line)
                assert written.setdefault(document["id"], document) is document  # each once
    assert len(written) == repeated * len(texts)
    translate = pipeline("translation", str(model_directory))
    expected = {text: record["translation_text"] for text, record in zip(texts, translate(texts), strict=True)}
    assert all(each["metadata"]["translation"] == expected[each["text"]] for each in written.values())
    row.evidence(documents=len(written), tasks=files, completed_before_it_was_killed=completed)
