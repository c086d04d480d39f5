"""The shells that move bytes: sockets, timeouts and tasks around what the core decided."""
