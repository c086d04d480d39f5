"""Load on a key-value store over HTTP, and the judgement of every answer (``docs/loadtests.md``).

``locustfile users shapes`` run in a process of locust, which patches the standard library: nothing else
imports them. All they leave is records; the rest reads these and needs no locust.
"""
