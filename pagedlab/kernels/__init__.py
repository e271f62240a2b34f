"""The work on paged keys and values. `ops.py` has one signature each; the other files are ways to do it."""
