"""Benchmarks: what the ring reaches, beside what this machine can carry at all and what others reach on it.

A rate alone says little on a shared machine. So every benchmark runs its ceilings in the same run, raw
sockets and a bare ordered loop, and the result states ratios. A message counts as delivered when an
application received its bytes; all members hash what they received, and the hashes are compared.

``raw`` and ``bare`` are the ceilings, ``ordering`` the engine behind its UDP driver, ``failover`` the time
without service when a site dies, ``peers`` other products under the same workload.
"""
