"""What did the replicas do? Answers from recordings, on Spark (``docs/pipeline.md``).

::

    recordings ──ingest──▶ bronze ──lifecycle──▶ silver ──audit, metrics, history──▶ gold

A job is a module in ``pipeline.jobs`` with pure functions from DataFrames to DataFrames, and a ``run`` that
reads and writes tables (``pipeline.tables``). No job names a master: who starts it does, and ``rsm pipeline``
falls back to this machine. Recordings are read by their schema; of the engine only the simulator is imported,
by ``sweep``.
"""
