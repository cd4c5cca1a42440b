"""The environment of the tests; the fixtures they share are in shared_fixtures.py.

No test needs the network, and none leaves anything outside pytest's temporary folder.
"""

import os
import shutil
import signal
import tempfile

import pytest


# A user's paths may have spaces and letters outside ASCII, so all tests' paths have them. xdist's workers inherit the
# folder, and add no second one. A path above 75 bytes is too long for sockets, and for locks of `datasets`.
_FOLDER = f"Ü {os.getuid()}"
if os.path.basename(tempfile.gettempdir()) != _FOLDER:
    parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < 65 else "/tmp"
    os.environ["TMPDIR"] = tempfile.tempdir = f"{parent}/{_FOLDER}"
    os.makedirs(tempfile.tempdir, mode=0o700, exist_ok=True)

# Read when the libraries are imported.
_CACHE = tempfile.mkdtemp(prefix="vaswani-tests-")
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HOME=_CACHE,
    HF_DATASETS_CACHE=f"{_CACHE}/datasets",
    HF_EVALUATE_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    HYPOTHESIS_STORAGE_DIRECTORY=f"{_CACHE}/hypothesis",
    MPLCONFIGDIR=f"{_CACHE}/matplotlib",  # the home directory may be read-only
    GRADIO_ANALYTICS_ENABLED="False",
    HF_HUB_DISABLE_TELEMETRY="True",  # as gradio sets it
    CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", ""),  # else pipelines choose a GPU, and tests the CPU
    OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
    TORCHINDUCTOR_COMPILE_THREADS="1",  # older torch starts a pool of processes that compile
)

# No test cuts the power, and a disk takes milliseconds for each file.
os.fsync = lambda descriptor: None

# Where the tests run in the background it is ignored, which the programs that they start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    # The process that hands out tests runs none, and would import libraries for seconds before the others start.
    if not getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        config.pluginmanager.import_plugin("shared_fixtures")


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)
