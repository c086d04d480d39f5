"""The state of keys as of any slot once more, in SQL for DuckDB, from the words of ``docs/pipeline.md``: slot
by slot, without parts, windows or intervals. Nothing here knows how ``pipeline.history`` does it."""

from collections.abc import Iterable
from pathlib import Path

import duckdb

_TABLES = """
create table told as
    select *, position >> 32 as number from read_parquet('{root}/bronze/changes/*/*.parquet');
create table wanted as select unnest({chains}) as chain, unnest({slots}) as as_of;

-- a stretch begins with a base, or with a file before which one is missing
create table marks as
    select recorder, position, bool_or(is_base) as is_base from (
        select recorder, position, true as is_base from told where kind = 'base' and key is null
        union all
        select recorder, min(position), false from told t where not exists (
            select 1 from told b where b.recorder = t.recorder and b.number = t.number - 1)
        group by recorder, number)
    group by all;
create table placed as
    select t.*, (select max(m.position) from marks m
        where m.recorder = t.recorder and m.position <= t.position) as mark
    from told t;
create table stretches as
    select p.chain, p.recorder, p.mark, m.is_base, max(p.boot) as boot, max(p.ts) as last_ts,
        coalesce(max(p.ts) filter (m.is_base and p.position = mark), min(p.ts)) as first_ts,
        coalesce(max(p.version) filter (p.position = mark), 0)
            = count(*) filter (p.kind = 'base' and p.key is not null) as is_whole
    from placed p join marks m on m.recorder = p.recorder and m.position = p.mark group by all;

-- slots of which nobody has told everything, and the first whole base behind each
create table untold as
    select chain, ts from (
        select chain, unnest(range(min(first_ts) + 1, max(last_ts) + 1)) as ts
        from stretches group by chain) t
    where not exists (
        select 1 from stretches s where s.chain = t.chain and s.first_ts < t.ts and t.ts <= s.last_ts);
create table ends as
    select distinct u.chain, (select min(s.first_ts) from stretches s where s.chain = u.chain
        and s.is_base and s.is_whole and s.first_ts >= u.ts) as ts
    from untold u;

-- what the last change of a slot left, by who has told most of it
create table words as
    select chain, key, ts, recorder, boot, true as is_change, count(*) as words,
        arg_max(kind, position) as kind, arg_max(coalesce(value, ''), position) as value
    from told where kind in ('put', 'delete', 'expire') group by all
    union all
    select distinct chain, key, revision, recorder, boot, false, 1, 'put', value
    from told where kind = 'base' and key is not null;
create table facts as
    select distinct on (chain, key, ts) chain, key, ts, kind, value from words w
    order by is_change desc, exists (
        select 1 from stretches s where s.chain = w.chain and s.recorder = w.recorder
        and s.boot = w.boot and s.last_ts = w.ts), words desc;

-- what was there before slots that nobody tells, and is not in the base behind them
create table gone as
    select e.chain, k.key, e.ts, 'gone' as kind, null as value
    from ends e join (select distinct chain, key from facts) k on k.chain = e.chain
    where (select arg_max(kind, ts) from facts f
            where f.chain = k.chain and f.key = k.key and f.ts < e.ts) = 'put'
    and not exists (
        select 1 from facts f where f.chain = k.chain and f.key = k.key and f.ts = e.ts)
    and not exists (
        select 1 from told b where b.kind = 'base' and b.chain = k.chain and b.key = k.key and b.ts = e.ts);
"""

_STATE = """
    select chain, as_of, key, value, ts from (
        select w.chain, w.as_of, c.key, max(c.ts) as ts, arg_max(c.kind, c.ts) as kind,
            arg_max(coalesce(c.value, ''), c.ts) as value
        from wanted w join (from facts union all from gone) c on c.chain = w.chain and c.ts <= w.as_of
        group by all)
    where kind = 'put'
"""

# Bases from which on every slot was told, and told behind too: what is written there is the truth.
_KNOWN = """
    select distinct w.chain, w.as_of from wanted w join stretches b on b.chain = w.chain
    where b.is_base and b.is_whole and b.first_ts <= w.as_of and not exists (
        select 1 from range(b.first_ts + 1, w.as_of + 1) t(ts) where not exists (
            select 1 from stretches s
            where s.chain = w.chain and s.first_ts < t.ts and t.ts < s.last_ts))
"""

Slots = set[tuple[int, int]]
States = set[tuple[int, int, bytes, bytes, int]]


def states(root: Path, wanted: Iterable[tuple[int, int]]) -> tuple[States, Slots]:
    """Chain, slot, key, value and revision, for every chain and slot that is wanted; and of these those that
    must be as they really were."""
    chains, slots = zip(*wanted, strict=True)
    with duckdb.connect() as database:
        database.execute(_TABLES.format(root=root, chains=list(chains), slots=list(slots)))
        found = {tuple(row) for row in database.execute(_STATE).fetchall()}
        return found, {tuple(row) for row in database.execute(_KNOWN).fetchall()}
