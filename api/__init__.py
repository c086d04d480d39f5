"""The HTTP facade of the key-value store (``docs/http.md``)."""
