"""What metrics mean, message by message, in the SQL of DuckDB: from the definitions, not from the jobs."""

# Every message at every replica, from the events alone. What has a slot up to which an earlier process of the
# site had delivered is delivered again, and is not here. Times of submission and of replies are those that
# the same process told.
MESSAGES = """
CREATE TABLE own AS
SELECT site, boot, qos, mono_ns, first_seq + unnest(range(count)) AS seq FROM events
WHERE event = 'submitted';
CREATE TABLE replies AS
SELECT site, boot, mono_ns, first_ts + unnest(range(count)) AS ts FROM events
WHERE event = 'replied' AND source = site;
CREATE TABLE lives AS
SELECT site, boot, min(wall_ns) AS began, max(wall_ns) AS ended FROM events WHERE chain <> 0 GROUP BY ALL;
CREATE TABLE handed AS
SELECT site, boot, source, qos, epoch, detail, mono_ns, wall_ns, first_ts + offset_ AS ts,
  first_seq + offset_ AS seq
FROM (SELECT *, unnest(range(count)) AS offset_ FROM events WHERE event = 'delivered' AND chain <> 0);
CREATE TABLE delivered AS
SELECT d.* FROM handed d WHERE NOT EXISTS (
  SELECT 1 FROM handed e JOIN lives old ON old.site = e.site AND old.boot = e.boot
    JOIN lives new ON new.site = d.site AND new.boot = d.boot
  WHERE e.site = d.site AND old.began < new.began AND e.ts >= d.ts);
CREATE TABLE reached AS
SELECT event AS kind, site, boot, mono_ns, first_ts AS ts FROM events WHERE event IN ('held', 'applied')
UNION ALL SELECT 'majority', site, boot, mono_ns, first_ts FROM events WHERE event = 'level'
UNION ALL SELECT 'stable', site, boot, mono_ns, CAST(split_part(detail, ' ', 2) AS BIGINT) FROM events
WHERE event = 'level';
CREATE MACRO told(kind_, site_, boot_, ts_) AS (
  SELECT min(mono_ns) FROM reached WHERE kind = kind_ AND site = site_ AND boot = boot_ AND ts >= ts_);
CREATE TABLE known AS
SELECT d.*,
  (SELECT max(mono_ns) FROM own o WHERE d.site = d.source AND o.site = d.site AND o.boot = d.boot
   AND o.seq = d.seq AND o.qos = d.qos) AS submitted_ns,
  (SELECT max(mono_ns) FROM replies r WHERE d.site = d.source AND r.site = d.site AND r.boot = d.boot
   AND r.ts = d.ts) AS replied_ns,
  told('held', d.site, d.boot, d.ts) AS held_ns,
  -- who delivers at majority knows that a majority holds it
  least(told('majority', d.site, d.boot, d.ts),
    CASE WHEN d.detail IN ('majority', 'total') THEN d.mono_ns END) AS majority_ns,
  told('stable', d.site, d.boot, d.ts) AS stable_ns, told('applied', d.site, d.boot, d.ts) AS applied_ns
FROM delivered d WHERE d.ts IS NOT NULL;
CREATE TABLE waits AS
SELECT 'delivery_latency' AS metric, site, mono_ns AS ended, mono_ns - submitted_ns AS value FROM known
UNION ALL SELECT 'majority_latency', site, majority_ns, majority_ns - submitted_ns FROM known
UNION ALL SELECT 'stable_latency', site, stable_ns, stable_ns - submitted_ns FROM known
UNION ALL SELECT 'reply_latency', site, replied_ns, replied_ns - submitted_ns FROM known
UNION ALL SELECT 'held_lag', site, greatest(held_ns, mono_ns), greatest(held_ns - mono_ns, 0) FROM known
WHERE held_ns IS NOT NULL
UNION ALL SELECT 'applied_lag', site, applied_ns, applied_ns - mono_ns FROM known;
"""
# A simulator's clocks are one. Nearest rank: the smallest of which so many are not above.
PERCENTILES = """
SELECT metric, site, bin, count(value), list_sort(list(value))
FROM (SELECT *, ended - ended % $width AS bin FROM waits WHERE value >= 0) GROUP BY metric, CUBE (site, bin)
"""
# Of each replica and of the group (null), in each window: messages, and nanoseconds in which somebody lived.
# Those are counted between all moments at which a life begins or ends. Between a gap, or the last row of a
# file before one that is lost, and the row behind it nothing is known.
RATES = """
WITH lost AS (
  SELECT DISTINCT site, unnest(range(least(a, b) // $width, greatest(a, b) // $width + 1)) * $width AS bin
  FROM (SELECT site, event, wall_ns AS a, lead(wall_ns) OVER o AS b, position >> 32 AS number,
      lead(position >> 32) OVER o AS next FROM events WINDOW o AS (PARTITION BY recorder ORDER BY position))
  WHERE event = 'gap' OR next > number + 1),
told AS (
  SELECT event AS metric, site, wall_ns, count AS messages FROM events
  WHERE event IN ('submitted', 'replied') AND chain <> 0
  UNION ALL SELECT 'delivered', site, wall_ns, 1 FROM delivered
  UNION ALL SELECT 'applied', site, applied_ns, 1 FROM known WHERE applied_ns IS NOT NULL),
pieces AS (
  SELECT site, bin, greatest(began, bin) AS began, least(ended, bin + $width) AS ended
  FROM (SELECT *, unnest(range(began // $width, ended // $width + 1)) * $width AS bin FROM lives)
  WHERE (site, bin) NOT IN (SELECT (site, bin) FROM lost)),
seen AS (SELECT site AS who, * FROM pieces UNION ALL SELECT NULL, * FROM pieces),
moments AS (
  SELECT who, bin, moment, lead(moment) OVER (PARTITION BY who, bin ORDER BY moment) AS next
  FROM (SELECT who, bin, began AS moment FROM seen UNION SELECT who, bin, ended FROM seen)),
lived AS (
  SELECT who, bin, sum(CASE WHEN is_lived THEN next - moment ELSE 0 END) AS ns
  FROM (SELECT *, EXISTS (
      SELECT 1 FROM seen s WHERE s.who IS NOT DISTINCT FROM m.who AND s.bin = m.bin
      AND s.began <= m.moment AND s.ended >= m.next) AS is_lived FROM moments m)
  GROUP BY who, bin),
tellers AS (SELECT DISTINCT metric, site FROM told),
own AS (
  SELECT t.metric, p.site AS who, p.bin,
    (SELECT coalesce(sum(messages), 0) FROM told m WHERE m.metric = t.metric AND m.site = p.site
     AND m.wall_ns >= p.bin AND m.wall_ns < p.bin + $width) AS messages
  FROM (SELECT DISTINCT site, bin FROM pieces) p JOIN tellers t USING (site)),
bins AS (
  SELECT * FROM own
  UNION ALL SELECT metric, NULL, bin, max(messages) FROM own WHERE metric IN ('delivered', 'applied')
  GROUP BY metric, bin
  UNION ALL SELECT metric, NULL, bin, sum(messages) FROM own o WHERE metric IN ('submitted', 'replied')
  AND NOT EXISTS (SELECT 1 FROM lost l JOIN tellers t USING (site)
    WHERE t.metric = o.metric AND l.bin = o.bin)
  GROUP BY metric, bin),
each AS (
  SELECT b.*, l.ns, CASE WHEN 2 * l.ns >= $width THEN messages * 1e9 / l.ns END AS rate
  FROM bins b JOIN lived l ON l.who IS NOT DISTINCT FROM b.who AND l.bin = b.bin)
SELECT metric, 'rate', who, bin, rate, messages FROM each WHERE rate IS NOT NULL
UNION ALL
SELECT metric, 'mean', who, NULL, sum(messages) * 1e9 / sum(ns), sum(messages) FROM each
GROUP BY metric, who HAVING sum(ns) > 0
UNION ALL
SELECT metric, 'max', who, NULL, max(rate), sum(messages) FROM each GROUP BY metric, who
HAVING max(rate) IS NOT NULL
"""
CHANGES = """
SELECT site, epoch, first - (SELECT max(o.mono_ns) FROM delivered o WHERE o.site = n.site
    AND o.boot = n.boot AND o.epoch = (SELECT max(p.epoch) FROM delivered p
      WHERE p.site = n.site AND p.boot = n.boot AND p.epoch < n.epoch)) AS duration
FROM (SELECT site, boot, epoch, min(mono_ns) AS first FROM delivered GROUP BY ALL) n WHERE duration >= 0
UNION ALL
SELECT NULL, epoch, first - (SELECT max(o.wall_ns) FROM delivered o WHERE o.wall_ns <= n.first
    AND o.epoch = (SELECT max(epoch) FROM delivered p WHERE p.epoch < n.epoch)) AS duration
FROM (SELECT epoch, min(wall_ns) AS first FROM delivered GROUP BY ALL) n WHERE duration IS NOT NULL
"""
# A counter tells of all the time since the sample before, of the same process, and counts in the window in
# which it was taken. One that is less than before has begun again. A ring's members are those of the last
# view that the process has told. Messages and seconds of the group are in each window those of a replica, on
# the average of those that tell, and over the whole recording the sum of these.
SAMPLED = """
WITH told AS (
  SELECT s.site, s.boot, s.position, s.mono_ns, s.wall_ns - s.wall_ns % $width AS bin, s.detail,
    (SELECT p.position FROM events p WHERE p.event = 'sample' AND p.site = s.site AND p.boot = s.boot
     AND p.position < s.position ORDER BY p.position DESC LIMIT 1) AS before,
    (SELECT len(string_split(split_part(v.detail, '; ring ', 2), ' ')) FROM events v
     WHERE v.event = 'view' AND v.site = s.site AND v.boot = s.boot AND v.position < s.position
     ORDER BY v.position DESC LIMIT 1) AS ring
  FROM events s WHERE s.event = 'sample'),
each AS (
  SELECT t.site, t.bin, t.ring, t.mono_ns - p.mono_ns AS elapsed, name,
    CAST(json_extract(t.detail, '$.' || name) AS BIGINT) AS now,
    CAST(json_extract(p.detail, '$.' || name) AS BIGINT) AS was
  FROM told t LEFT JOIN events p ON p.position = t.before,
    (SELECT unnest(['datagrams_out', 'bytes_out', 'delivered', 'passes', 'retransmitted', 'nacks',
       'buffered_slots', 'window_messages', 'window_bytes', 'waiting', 'receive_bytes']) AS name)),
own AS (
  SELECT site, bin, name, sum(CASE WHEN now >= was THEN now - was WHEN now < was THEN now END) AS growth,
    sum(elapsed) AS elapsed, sum(elapsed * ring) AS rounds, count(elapsed) AS samples, sum(now) AS total,
    max(now) AS most, count(now) AS told
  FROM each GROUP BY ALL),
bins AS (
  SELECT who, bin, name, sum(growth) AS growth, avg(growth) AS each_growth, avg(elapsed) AS each_elapsed,
    sum(rounds) AS rounds, sum(samples) AS samples, sum(total) AS total, max(most) AS most, sum(told) AS told
  FROM (SELECT site AS who, * FROM own UNION ALL SELECT NULL, * FROM own) GROUP BY who, bin, name),
sums AS (
  SELECT * FROM bins
  UNION ALL
  SELECT who, NULL, name, sum(growth), sum(each_growth), sum(each_elapsed), sum(rounds), sum(samples),
    sum(total), max(most), sum(told)
  FROM bins GROUP BY who, name)
SELECT CASE s.name WHEN 'bytes_out' THEN 'bytes_per_message' ELSE 'packets_per_message' END, 'mean', s.who,
  s.bin, s.growth / d.each_growth, s.samples
FROM sums s JOIN sums d ON s.who IS NOT DISTINCT FROM d.who AND s.bin IS NOT DISTINCT FROM d.bin
WHERE s.name IN ('datagrams_out', 'bytes_out') AND d.name = 'delivered' AND d.each_growth > 0
AND s.growth IS NOT NULL
UNION ALL
SELECT 'token_rotation', 'mean', who, bin, rounds / growth, samples FROM sums
WHERE name = 'passes' AND growth > 0 AND rounds IS NOT NULL
UNION ALL
SELECT CASE name WHEN 'retransmitted' THEN 'retransmissions' ELSE name END, 'rate', who, bin,
  growth * 1e9 / each_elapsed, samples
FROM sums WHERE name IN ('retransmitted', 'nacks') AND growth IS NOT NULL AND each_elapsed > 0
UNION ALL
SELECT name, unnest(['mean', 'max']), who, bin, unnest([total / told, CAST(most AS DOUBLE)]), told FROM sums
WHERE name IN ('buffered_slots', 'window_messages', 'window_bytes', 'waiting', 'receive_bytes') AND told > 0
"""
