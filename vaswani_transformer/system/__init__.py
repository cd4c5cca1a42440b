"""Files, the console and processes, and the handling of their failures.

`files.py` writes atomically, `manifests.py` tells whether files are complete, and `typed_json.py` reads records.
`processes.py` starts, joins and leaves the process group, and shares results and errors among its ranks; `signals.py`
saves a checkpoint after a signal; `faults.py` ends all processes with one line; `processor.py` knows the cores of a
processor, and which number types it multiplies slowly. `console.py` prints and shows progress.
"""
