"""The network battery: real sites on real sockets, and a network that breaks in the ways networks break.

Each site is a process in a network namespace of its own; a bridge in another namespace joins them. ``faults``
breaks the bridge, ``cases`` says how and what has to hold, ``replica`` is a site with its application,
``checks`` judges what the sites report, ``battery`` plays the cases.
"""
