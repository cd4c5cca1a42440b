"""Everything that exists because machines fail: processes, signals, faults.

`processes.py` joins and leaves the process group, and raises the error of one rank on all; `interruption.py` handles
signals; `ending.py` ends the program with one line, and `faults.py` says which, and with what exit status.
"""
