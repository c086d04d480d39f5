"""Did the promises hold over the whole recording? One rule per file; what they are is in
``docs/pipeline.md``.

==================  ===============================================================================
``recorded``        events as ranges of slots: what is a promise, what was taken back, where rows are missing
``by_slot``         ranges side by side in (chain, part of the slots), for total_order, virtual_synchrony,
                    integrity and agreement
``by_source``       ranges side by side in (chain, source, part of its numbers), for source_order and
                    integrity
single_primary      from views alone
equal_digests       from applied states alone
exactly_once        and one_reply, real_time: from what callers saw
``verdicts``        what a violation is, and how many are told
==================  ===============================================================================

A rule that is judged side by side is a column: a verdict, or null. So all rules of one layout are judged in
one pass over it.
"""
