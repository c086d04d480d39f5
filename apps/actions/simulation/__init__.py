"""Actions in the simulator: sites with disks of their own, initiators, faults, and a checker for each claim.

The ring, the ledger, ``SiteCore`` and ``Calls`` are the shipped ones; the databases are made up
(``bank.py``).
"""
