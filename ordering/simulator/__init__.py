"""A deterministic simulator: the shipped engine, virtual time, seeded faults, and checkers.

One run is a function of its ``Plan``: same plan, same trace hash. ``run.simulate`` plays a plan and
returns a ``Report``; a report with violations carries the line that replays it.
"""
