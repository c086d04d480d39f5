"""The chaos battery: real replicas with disks, killed and stopped at the worst moments, under load.

Each site is a process with a failpoint for every role it can have (``failpoints``); ``site`` runs it,
``load`` calls the machine of ``registers`` all the time and writes every call down (``history``). ``plan``
draws from a seed what happens in a round, ``cluster`` has the processes, ``faults`` strikes them, ``rounds``
plays a round and ``checks`` judges it. ``books`` count what was done, so that a campaign can be interrupted.
"""
