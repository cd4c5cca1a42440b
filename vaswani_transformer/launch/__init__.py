"""The processes of a program, and what happens when one of them or its machine fails.

`cores.py` starts processes on the cores of a CPU; `processes.py` joins and leaves the process group, and shares results
and errors among the ranks; `signals.py` saves a checkpoint after a signal; `faults.py` ends the program with one line;
`memory.py` lets the allocator keep freed memory.
"""
