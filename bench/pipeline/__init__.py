"""`rsm bench pipeline`: recordings as large as one likes, what the jobs make of them, and how fast.

==============  ==================================================================================
``generator``   writes recordings that keep all rules, millions of rows in a second or so
``plants``      breaks each rule at a place that is known
``run``         all sizes, each in a process of its own; how times grow, and what became of the plants
==============  ==================================================================================
"""
