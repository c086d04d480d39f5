"""Totally ordered multicast: an embedded, sans-IO RMP engine."""
