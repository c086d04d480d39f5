"""What can go wrong with a measurement.

BenchError
├── NotAvailable      something the benchmark needs is not on this machine; the text says how to get it
├── WorkerFailed      a process of the benchmark raised, died or was late
└── DatagramsLost     a loop without recovery lost packets: the rate would be that of another workload
"""


class BenchError(Exception):
    """A benchmark gave no result. The text is for the person who typed the command."""


class NotAvailable(BenchError):
    pass


class WorkerFailed(BenchError):
    pass


class DatagramsLost(BenchError):
    pass
