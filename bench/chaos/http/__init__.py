"""The chaos battery over HTTP: the same faults, and load that comes through gateways, which are struck too.

``store`` is the machine under attack and its answers as HTTP shows them, ``draws`` what is asked next,
``requests`` how that becomes HTTP and back. ``load`` asks, ``outside`` does so over HTTP, ``watching``
watches what the others change, and ``gateways`` has the processes between them and the group. ``cells`` is
the model of a search without timestamps, ``checks`` judges a round.
"""
