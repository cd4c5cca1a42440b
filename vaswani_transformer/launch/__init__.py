"""Everything that exists because machines fail: processes, signals, faults.

`processes.py` joins and leaves the process group, and raises the error of one rank on all; `watchdog.py` notices lost
ranks; `interruption.py` handles signals; `faults.py` ends the program with one line and an exit status.
"""
