"""The `rsm` command line."""
