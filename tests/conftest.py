"""The environment and the order of the tests; what they share stands in shared_fixtures.py.

No test needs the network, and none leaves anything outside pytest's temporary folder.
"""

import os
import signal
import tempfile


# A user's paths may have spaces and letters outside ASCII, so all tests' paths have them. Programs that the tests start
# inherit the folder, and so do xdist's workers, which add no second one. A path above 75 bytes is too long for sockets
# of worker processes, and for `datasets`, which makes a whole path the name of a lock.
_FOLDER = f"Ü {os.getuid()}"
_PARENT = tempfile.gettempdir()
if os.path.basename(_PARENT) != _FOLDER:
    if len(os.fsencode(f"{_PARENT}/{_FOLDER}")) > 75:
        _PARENT = "/tmp"
    os.environ["TMPDIR"] = tempfile.tempdir = f"{_PARENT}/{_FOLDER}"
    os.makedirs(tempfile.tempdir, mode=0o700, exist_ok=True)

# Read when the libraries are imported, so they are set before any of them is.
_CACHE = tempfile.mkdtemp(prefix="vaswani-tests-")
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HOME=_CACHE,
    HF_DATASETS_CACHE=f"{_CACHE}/datasets",
    HF_EVALUATE_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    MPLCONFIGDIR=f"{_CACHE}/matplotlib",  # the home directory may be read-only
    GRADIO_ANALYTICS_ENABLED="False",
    HF_HUB_DISABLE_TELEMETRY="True",  # as gradio sets it
    HYPOTHESIS_STORAGE_DIRECTORY=f"{_CACHE}/hypothesis",
    CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", ""),  # else pipelines choose a GPU, and tests the CPU
    OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
    TORCHINDUCTOR_COMPILE_THREADS="1",  # older torch starts a pool of processes that compile
)

# Where the tests run in the background it is ignored, which the programs that they start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

import shutil  # noqa: E402 - behind the environment

import pytest  # noqa: E402


# They wait, or have long tests; begun first, they do not keep one worker busy when the others have ended.
LONG = (
    "test_paper_notebook",
    "test_reproduce_table3",
    "test_train_wmt",
    "test_faults",
    "test_translate",
    "test_processes",
    "test_benchmarks",
)


def pytest_configure(config: pytest.Config) -> None:
    # The process that hands out tests runs none, and would import libraries for seconds before the others start.
    if not getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        config.pluginmanager.import_plugin("shared_fixtures")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)
