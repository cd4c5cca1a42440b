"""Everything that exists because machines fail: processes, signals, faults.

`processes.py` joins and leaves the process group, and raises the error of one rank on all; `signals.py` saves a
checkpoint after a signal; `faults.py` ends the program with one line; `shared_directory.py` locks its output.
"""
