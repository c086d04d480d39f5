"""Test your own machine in the simulator (``docs/testing.md``).

::

    from rsm.testing import simulate

    def calls(rng):
        return ("get", ()) if rng.random() < 0.3 else ("add", (rng.randrange(10),))

    def test_counter():
        simulate(Counter, calls, seeds=range(20)).check()
"""

from rsm.testing.simulation import Failure, Report, simulate

__all__ = ["Failure", "Report", "simulate"]
