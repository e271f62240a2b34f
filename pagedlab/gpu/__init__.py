"""GPUs without having one: what a kernel compiles to, how it runs, and what a given GPU could make of it.

`mode.py` says whether Triton interprets or compiles, `compiled.py` compiles for a GPU that is not there. Nothing here
knows the kernels of this package: those are one floor up.
"""
