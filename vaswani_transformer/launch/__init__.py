"""The processes of a program, and what happens when one of them or its machine fails.

`cores.py` starts processes on the cores of a CPU; `processes.py` joins and leaves the process group, and shares results
and errors among the ranks; `signals.py` saves a checkpoint after a signal; `endings.py` ends a program with one line,
and `faults.py` all processes of one; `memory.py` lets the allocator keep freed memory.
"""
