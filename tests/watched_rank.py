"""A rank that test_watchdog.py starts, to stop or kill it, or to let it wait.

    python tests/watched_rank.py TIMEOUT STAGE...

Each stage prints its name before it begins. `wait N` sleeps N seconds, as a rank that prepares data does; `steps N`
makes N steps of 0.2 seconds; `hang` begins a step that does not end; `barrier` waits for the other ranks.
"""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
from accelerate import PartialState

from vaswani_transformer.launch.watchdog import Watchdog


def main(timeout: float, stages: list[str]) -> None:
    PartialState(cpu=True, timeout=timedelta(days=1))
    signal.signal(signal.SIGTERM, lambda *_: (print("terminated", flush=True), os._exit(7)))
    with Watchdog("watched_rank.py", timeout) as watchdog:
        for stage in stages:
            print(stage, flush=True)
            if stage == "barrier":
                torch.distributed.barrier()
            elif stage == "hang":
                watchdog.on_train_begin()
                time.sleep(1000)
            elif stage.startswith("wait"):
                time.sleep(float(stage.split()[1]))
            else:
                watchdog.on_train_begin()
                for _ in range(int(stage.split()[1])):
                    time.sleep(0.2)
                    watchdog.on_step_end()
                watchdog.on_train_end()
    print("end", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
