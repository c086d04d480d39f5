"""Dynamic actions: change the databases of several sites, all or none (``docs/actions.md``)."""
