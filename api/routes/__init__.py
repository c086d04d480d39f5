"""What stands at each path; ``/v1/kv/{key}`` is in ``api.hot``."""
