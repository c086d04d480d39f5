"""Transfers between two sites' databases: by dynamic actions, and by two-phase commit with a coordinator."""
