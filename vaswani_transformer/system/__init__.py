"""Files, the console and processes, and what happens when one of them fails.

`files.py` writes atomically, `manifests.py` tells whether files are complete, and `typed_json.py` reads records.
`cores.py` starts processes on the cores of a CPU; `processes.py` joins and leaves the process group, and shares results
and errors among the ranks; `signals.py` saves a checkpoint after a signal; `faults.py` ends all processes with one
line; `processor.py` tells what a processor is slow at.
"""
