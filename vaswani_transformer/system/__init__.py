"""Files, the console and processes, and the handling of their failures.

`files.py` writes atomically, `manifests.py` tells whether files are complete, and `typed_json.py` reads records.
`launcher.py` starts processes; `processes.py` joins and leaves their group, and shares results and errors among its
ranks; `faults.py` ends all of them with one line; `processor.py` knows the cores of a processor, and which number types
it multiplies slowly. `console.py` prints tables and progress, `messages.py` makes text printable.
"""
