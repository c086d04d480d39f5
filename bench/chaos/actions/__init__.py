"""Actions at several sites under attack: transfers between their databases, and what became of each."""
