"""Files, the console and processes, and the handling of their failures.

`files.py` writes atomically, `manifests.py` tells whether files are complete, and `typed_json.py` reads records.
`cores.py` starts processes on the cores of a CPU; `processes.py` joins and leaves the process group, and shares results
and errors among the ranks; `signals.py` saves a checkpoint after a signal; `faults.py` ends all processes with one
line; `processor.py` knows which number types a processor multiplies slowly.
"""
