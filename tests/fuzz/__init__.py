"""Random calls: legal ones must keep every promise of the library, illegal ones must raise.

`make fuzz MINUTES=5 SEED=0` runs it; `PYTHONPATH=tests python -m fuzz --only 17` repeats one call.
"""
