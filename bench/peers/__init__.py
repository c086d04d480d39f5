"""Other products under the same workload, where they are installed. Nothing here installs anything."""
