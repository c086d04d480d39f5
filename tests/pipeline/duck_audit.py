"""The audit's rules once more, in SQL for DuckDB, from their text: message by message, without ranges,
parts or windows over them. Nothing here knows how ``pipeline.audit`` does it."""

from pathlib import Path

import duckdb

_TABLES = """
create table events as select * from read_parquet('{root}/bronze/events/*/*.parquet') where chain <> 0;
create table calls as select * from read_parquet('{root}/bronze/operations/*/*.parquet')
    where chain <> 0 and kind = 'command';
create table timed as select *, coalesce(clock, recorder) as whose
    from read_parquet('{root}/bronze/operations/*/*.parquet')
    where chain <> 0 and kind in ('command', 'query');
create table files as select * from read_parquet('{root}/bronze/files/*/*.parquet');

-- every message that was delivered with a timestamp, and every view
create table told as
    select chain, site, boot, position, file, detail in ('majority', 'total') as is_final, epoch, revision,
        source, unnest(range(first_ts, first_ts + count)) as ts,
        unnest(range(first_seq, first_seq + count)) as seq
    from events where event = 'delivered' and first_ts is not null;
create table views as select * from events where event = 'view' and first_ts is not null;
create table final as select * from told where is_final;
-- what a process had and was not taken back
create table had as select * from told where is_final or not exists (
    select 1 from events r where r.event = 'retracted' and r.chain = told.chain and r.site = told.site
    and r.boot = told.boot and r.position > told.position and r.first_ts <= told.ts);
-- where rows are missing: told by a gap, or by a number that no file has
create table gaps as
    select site, boot, position from events where event = 'gap'
    union all
    select site, boot, position from (
        select *, lag(recorder) over before as recorder_before, lag(number) over before as number_before
        from (select e.site, e.boot, f.recorder, f.number, min(e.position) as position
            from events e join files f on e.file = f.file and e.recorder = f.recorder group by all)
        window before as (partition by site, boot order by number)) b
    where exists (
        select 1 from (select unnest(range(b.number_before + 1, b.number)) as missing) m
        where b.recorder <> b.recorder_before
        or not exists (select 1 from files g where g.recorder = b.recorder and g.number = m.missing));
"""

_RULES = {
    "total-order": """
        select chain from (
            select chain, ts, source || ':' || seq as what from final
            union all select chain, first_ts, 'view' from views)
        group by chain, ts having count(distinct what) > 1""",
    "virtual-synchrony": """
        select chain from final group by chain, ts having count(distinct (epoch, revision)) > 1
        union all select chain from lacking where ts > last_message""",
    "agreement": "select chain from lacking where ts < last_message",
    "integrity": """
        select chain from final group by chain, site, boot, ts
        having count(distinct position) > 1 or count(*) > count(distinct file)  -- a copy is no other row
        union all
        select chain from final group by chain, site, boot, source, seq having count(distinct ts) > 1
        union all
        select m.chain from (select distinct chain, source, seq, ts from final) m
        where not exists (
            select 1 from gave g where g.chain = m.chain and g.site = m.source and g.seq = m.seq)
        and exists (
            select 1 from numbered n where n.chain = m.chain and n.site = m.source and n.least <= m.seq
            and (m.seq <= n.most or m.ts <= n.last_delivered))""",
    "source-order": """
        select chain from (
            select chain, ts, lag(ts) over (partition by chain, site, boot, source order by seq) as before
            from (select chain, site, boot, source, seq, min(ts) as ts from final group by all
                having count(distinct final.ts) = 1))
        where ts < before""",
    "single-primary": """
        select chain from views group by chain, first_ts having count(distinct (epoch, revision)) > 1
        union all select chain from views group by chain, epoch, revision having count(distinct first_ts) > 1
        union all select chain from views where detail <> 'locks only'
            group by chain, epoch, revision having count(distinct detail) > 1
        union all select a.chain from views a join views b on a.chain = b.chain and a.first_ts < b.first_ts
            where (a.epoch, a.revision) >= (b.epoch, b.revision)
        union all select chain from (
            select chain, string_split(regexp_extract(detail, 'voters ([0-9 ]*);', 1), ' ') as voters,
                string_split(regexp_extract(detail, 'ring ([0-9 ]*)$', 1), ' ') as ring
            from views where detail <> 'locks only' and revision = 0)
            where 2 * len(list_intersect(voters, ring)) <= len(voters)""",
    "equal-digests": """
        select chain from events where event in ('applied', 'restored') and digest is not null
        group by chain, first_ts having count(distinct digest) > 1""",
    "exactly-once": """
        select chain from calls group by chain, client, request having count(distinct ts) > 1
        union all
        select chain from calls where ts is not null
        group by chain, ts having count(distinct (client, request)) > 1""",
    "one-reply": "select chain from calls group by chain, client, request having count(distinct reply) > 1",
    "real-time": """
        select a.chain from timed a join timed b on a.chain = b.chain and a.whose = b.whose
        where a.return_ns < b.call_ns
            and (a.ts > b.ts or a.ts = b.ts and a.kind = 'query' and b.kind = 'command')""",
}

_DERIVED = """
-- all that a process has a row of, with its place in the recording
create table stood as
    select chain, site, boot, ts, position, true as is_message from had
    union all select chain, site, boot, first_ts, position, false from views;
create table spans as
    select chain, site, boot, min(ts) filter (is_message) as first_message,
        max(ts) filter (is_message) as last_message, max(ts) as last_slot
    from stood group by all having count(*) filter (is_message) > 0;
create table absent as
    select s.*, w.ts from spans s join (select distinct chain, ts from final) w
    on s.chain = w.chain and w.ts between s.first_message and s.last_slot
    anti join stood h on h.chain = s.chain and h.site = s.site and h.boot = s.boot and h.ts = w.ts;
create table placed as
    select a.*,
        (select max_by(position, ts) from stood h where (h.chain, h.site, h.boot) = (a.chain, a.site, a.boot)
            and h.is_message and h.ts < a.ts) as heard,
        (select min_by(position, ts) from stood h where (h.chain, h.site, h.boot) = (a.chain, a.site, a.boot)
            and h.ts > a.ts) as until
    from absent a;
create table lacking as
    select * from placed p
    where not exists (select 1 from gaps g where g.site = p.site and g.boot = p.boot
        and g.position > p.heard and g.position <= coalesce(p.until, 1::hugeint << 62))
    and not exists (select 1 from events r where r.event = 'restored' and r.site = p.site and r.boot = p.boot
        and r.first_ts >= p.ts and r.position > p.heard
        and r.position <= coalesce(p.until, 1::hugeint << 62));
-- every number that a source gave, in every chain that its boot was in
create table gave as
    select distinct p.chain, s.site, s.boot, unnest(range(s.first_seq, s.first_seq + s.count)) as seq
    from events s join (select distinct chain, site, boot from events) p
        on p.site = s.site and p.boot = s.boot
    where s.event = 'submitted' and s.qos not in ('unreliable', 'unordered');
create table numbered as
    select g.chain, g.site, g.boot, min(seq) as least, max(seq) as most,
        (select max(ts) from final f
            where f.chain = g.chain and f.site = g.site and f.boot = g.boot) as last_delivered
    from gave g
    where not exists (select 1 from gaps where gaps.site = g.site and gaps.boot = g.boot) group by all;
"""


def violated(root: Path) -> set[tuple[str, str]]:
    """Rules, with the chains in which they do not hold, as the tables of verdicts name them."""
    with duckdb.connect() as database:
        database.execute(_TABLES.format(root=root))
        database.execute(_DERIVED)
        found: set[tuple[str, str]] = set()
        for rule, query in _RULES.items():
            chains = database.execute(f"select distinct chain from ({query})").fetchall()
            found |= {(rule, f"{chain & (1 << 64) - 1:x}") for (chain,) in chains}
    return found
