"""SQL statements of the buffer, by name.

``:name`` is a bound value; states are literals, because partial indexes match literals only. Locking clauses
that differ between databases are functions.

States of a group: ready → claimed → trained; ``stale`` was dropped by the staleness limit, ``void`` was
built with weights that a resume voided. A group returned by a claim is ready if it was never used, else
trained (and may be replayed).
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import TextClause, bindparam, text


@cache
def query(statement: str) -> TextClause:
    """Parse a statement once; SQLAlchemy caches its compiled form by this object."""
    return text(statement)


@cache
def of_ids(statement: str) -> TextClause:
    """Parse a statement in which ``:ids`` is a list."""
    return query(statement).bindparams(bindparam("ids", expanding=True))


def skip_locked(dialect: str) -> str:
    """Clause by which concurrent claims on PostgreSQL skip each other's rows; SQLite has one writer."""
    return " FOR UPDATE SKIP LOCKED" if dialect == "postgresql" else ""


def for_update(dialect: str) -> str:
    """Clause that locks rows exclusively; SQLite locks the whole database."""
    return " FOR UPDATE" if dialect == "postgresql" else ""


def for_share(dialect: str) -> str:
    """Clause that locks rows against updates; SQLite locks the whole database."""
    return " FOR SHARE" if dialect == "postgresql" else ""


# -- history ------------------------------------------------------------------------------------
HISTORY = "SELECT value FROM counters WHERE name = 'history'"
COMPLETE_BELOW = "SELECT value FROM counters WHERE name = 'complete_below'"
SET_COUNTER = "UPDATE counters SET value = :value WHERE name = :name"
LOWER_COUNTER = """UPDATE counters SET value = CASE WHEN value > :value THEN :value ELSE value END
WHERE name = :name"""
COUNTERS = "SELECT name, value FROM counters"
PUT_COUNTER = """INSERT INTO counters (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
NEW_HISTORY = "INSERT INTO histories (from_step, started_at) VALUES (:step, :now) RETURNING id"

# -- writing ------------------------------------------------------------------------------------
PUT_GROUP = """INSERT INTO task_groups (key, kind, task_no, task, explorer_step, priority, state, size,
    min_model_version, max_model_version, history_id, written_at)
VALUES (:key, :kind, :task_no, :task, :explorer_step, :priority, 'ready', :size,
    :min_model_version, :max_model_version, :history, :now)
ON CONFLICT DO NOTHING RETURNING id"""
PUT_EXPERIENCES = """INSERT INTO experiences (group_id, run, reward, min_model_version, max_model_version,
    num_turns, metrics, info, prompt_text, response_text, prompt_ids, response_ids, response_mask, logprobs,
    teacher_ids, teacher_logprobs)
VALUES (:group_id, :run, :reward, :min_model_version, :max_model_version, :num_turns, :metrics, :info,
    :prompt_text, :response_text, :prompt_ids, :response_ids, :response_mask, :logprobs,
    :teacher_ids, :teacher_logprobs)"""

PUT_TOKEN_SCORES = """UPDATE experiences SET trainer_logprobs = :logprobs, entropies = :entropies
WHERE group_id = :group_id AND run = :run"""
PUT_MEDIA = "INSERT INTO media (digest, data) VALUES (:digest, :data) ON CONFLICT DO NOTHING"
HOLD_MEDIA = "INSERT INTO group_media (group_id, digest) VALUES (:group_id, :digest)"

# -- reading ------------------------------------------------------------------------------------
_GROUP = """g.id, g.key, g.task_no, CAST(g.task AS TEXT), g.explorer_step, g.kind, g.priority,
    g.use_count"""
_EXPERIENCE = """e.group_id, e.id, e.run, e.prompt_ids, e.response_ids, e.response_mask, e.logprobs, e.reward,
    e.min_model_version, e.max_model_version, e.prompt_text, e.response_text, e.num_turns,
    CAST(e.metrics AS TEXT), CAST(e.info AS TEXT)"""
_CLAIMED_EXPERIENCE = f"{_EXPERIENCE}, e.teacher_ids, e.teacher_logprobs"  # which only training reads
_FIFO = "g.use_count, g.priority DESC, g.task_no, g.id"
CLAIMED_GROUPS = f"SELECT {_GROUP} FROM task_groups g WHERE g.claim_token = :token ORDER BY {_FIFO}"
CLAIMED_EXPERIENCES = f"""SELECT {_CLAIMED_EXPERIENCE}
FROM task_groups g JOIN experiences e ON e.group_id = g.id
WHERE g.claim_token = :token ORDER BY e.group_id, e.run"""
CLAIMED_MEDIA = """SELECT digest, data FROM media WHERE digest IN (
    SELECT h.digest FROM group_media h JOIN task_groups g ON g.id = h.group_id
    WHERE g.claim_token = :token)"""
KIND_GROUPS = f"""SELECT {_GROUP} FROM task_groups g
WHERE g.kind = :kind AND g.state NOT IN ('void', 'stale') ORDER BY g.task_no, g.id LIMIT :limit"""
KIND_EXPERIENCES = f"""SELECT {_EXPERIENCE} FROM experiences e WHERE e.group_id IN (
    SELECT g.id FROM task_groups g WHERE g.kind = :kind AND g.state NOT IN ('void', 'stale')
    ORDER BY g.task_no, g.id LIMIT :limit) ORDER BY e.group_id, e.run"""
NEWEST_OF_TASK = f"""SELECT {_GROUP} FROM task_groups g
WHERE g.task_no = :task_no AND g.kind LIKE :kind AND g.state NOT IN ('void', 'stale')
ORDER BY g.id DESC LIMIT 1"""
NEWEST_LENGTHS = """SELECT COALESCE(e.response_tokens, LENGTH(e.response_ids) / 4),
    COALESCE(e.prompt_tokens, LENGTH(e.prompt_ids) / 4)
FROM experiences e JOIN task_groups g ON g.id = e.group_id WHERE g.kind = 'train'
ORDER BY e.id DESC LIMIT :limit"""
MEDIA_OF_GROUP = """SELECT digest, data FROM media WHERE digest IN (
    SELECT digest FROM group_media WHERE group_id = :group_id)"""
EXPERIENCES = f"""SELECT {_EXPERIENCE} FROM experiences e
WHERE e.id > :after_id AND e.response_ids IS NOT NULL ORDER BY e.id LIMIT :limit"""
CHOSEN_EXPERIENCES = f"""SELECT {_EXPERIENCE} FROM experiences e
WHERE e.id IN :ids AND e.response_ids IS NOT NULL"""
DEPTH = """SELECT 'ready', count(*) FROM task_groups WHERE kind = :kind AND state = 'ready'
UNION ALL SELECT 'trained', count(*) FROM task_groups WHERE kind = :kind AND state = 'trained'
UNION ALL SELECT 'stale', count(*) FROM task_groups WHERE kind = :kind AND state = 'stale'
    AND state IN ('void', 'stale')
UNION ALL SELECT 'void', count(*) FROM task_groups WHERE kind = :kind AND state = 'void'
    AND state IN ('void', 'stale')
UNION ALL SELECT CASE WHEN c.lease_until >= :now THEN 'claimed' WHEN g.use_count = 0 THEN 'ready'
    ELSE 'trained' END, 1 FROM claims c JOIN task_groups g ON g.claim_token = c.token
    WHERE c.state = 'open' AND g.kind = :kind"""
LIVE_TASKS = """SELECT DISTINCT task_no FROM task_groups WHERE kind = :kind
    AND state NOT IN ('void', 'stale') AND task_no >= :first AND task_no < :upto ORDER BY task_no"""
COUNT_LIVE = """SELECT count(DISTINCT task_no) FROM task_groups WHERE kind = :kind
    AND state NOT IN ('void', 'stale') AND task_no >= :first AND task_no < :upto"""

# -- leases of tasks ----------------------------------------------------------------------------
ENTER_PLACE = """INSERT INTO task_places (place, token, ready, held_until)
VALUES (:place, :token, :ready, :until)
ON CONFLICT (place) DO UPDATE SET token = excluded.token, ready = excluded.ready,
    held_until = excluded.held_until"""
KEEP_PLACE = "UPDATE task_places SET held_until = :until WHERE token = :token"
LEAVE_PLACE = "DELETE FROM task_places WHERE token = :token"
HAS_PLACE = "SELECT 1 FROM task_places WHERE token = :token"
# Leases on places are renewed every second, for seconds: one that ends later than in a minute was written
# before the clock was set back, and a living holder renews it within a second.
_IS_HELD = "p.held_until >= :now AND p.held_until <= :now + 60"
PLACES = f"SELECT place, token, ready FROM task_places p WHERE {_IS_HELD}"
HELD = f"""SELECT l.task_no, l.token, l.version FROM task_leases l JOIN task_places p ON p.token = l.token
WHERE l.kind = :kind AND {_IS_HELD}"""
HELD_BETWEEN = f"{HELD} AND l.task_no >= :first AND l.task_no < :upto"
HELD_IN_PART = f"{HELD} AND (l.task_no % :by = :place OR l.token = :token)"
HELD_BY_OTHERS = f"""SELECT l.version, count(*) FROM task_leases l JOIN task_places p ON p.token = l.token
WHERE l.kind = :kind AND l.token <> :token AND {_IS_HELD} GROUP BY l.version"""
MAY_AGAIN = """SELECT l.task_no FROM task_leases l
WHERE l.kind = :kind AND l.token = :token AND l.task_no IN :ids AND NOT EXISTS (SELECT 1 FROM task_groups g
    WHERE g.kind = l.kind AND g.task_no = l.task_no AND g.state NOT IN ('void', 'stale'))
ORDER BY l.task_no"""
LEASE = """INSERT INTO task_leases (kind, task_no, token, version)
VALUES (:kind, :task_no, :token, :version)
ON CONFLICT (kind, task_no) DO UPDATE SET token = excluded.token, version = excluded.version"""
END_LEASE = "DELETE FROM task_leases WHERE kind = :kind AND task_no = :task_no AND token = :token"
END_ALL_LEASES = "DELETE FROM task_leases"

# -- drawings of filter_groups, among several explorers -----------------------------------------
KEEP_DRAWN = """UPDATE task_groups SET kind = 'train', task_no = :task_no, key = :key
WHERE id = :id AND kind = :drawn AND state = 'ready' AND NOT EXISTS (SELECT 1 FROM task_groups o
    WHERE o.kind = 'train' AND o.task_no = :task_no AND o.state NOT IN ('void', 'stale'))"""
DROP_DRAWN = "UPDATE task_groups SET state = 'void' WHERE kind = :drawn AND state = 'ready'"
VOID_DRAWN = (
    "UPDATE task_groups SET state = 'void' WHERE kind >= 'draw:' AND kind < 'draw;' AND state = 'ready'"
)

# -- claims -------------------------------------------------------------------------------------
CLAIM_OF_REQUEST = "SELECT token FROM claims WHERE request = :request"
LAPSED = "SELECT token FROM claims WHERE state = 'open' AND lease_until < :now"
END_CLAIM = "UPDATE claims SET state = :state, trained_step = :step WHERE token = :token AND state = 'open'"
CLAIM_STATE = "SELECT state, trained_step FROM claims WHERE token = :token"
GIVE_BACK = """UPDATE task_groups SET claim_token = NULL,
    state = CASE WHEN use_count = 0 THEN 'ready' ELSE 'trained' END WHERE claim_token = :token"""
DROP_STALE = """UPDATE task_groups SET state = 'stale'
WHERE kind = :kind AND state = 'ready' AND min_model_version < :min_version RETURNING task_no"""
ANY_STALE = """SELECT 1 FROM task_groups
WHERE kind = :kind AND state = 'ready' AND min_model_version < :min_version LIMIT 1"""
READY_UPTO = """SELECT count(*) FROM (
    SELECT 1 FROM task_groups WHERE kind = :kind AND state = 'ready' LIMIT :count) r"""
NEW_CLAIM = """INSERT INTO claims (request, owner, step, history_id, state, lease_until, claimed_at)
VALUES (:request, :owner, :step, :history, 'open', :until, :now) RETURNING token"""
TAKE_READY = """WITH picked AS MATERIALIZED (
    SELECT id FROM task_groups WHERE kind = :kind AND state = 'ready'
    ORDER BY priority DESC, task_no, id LIMIT :count{skip_locked})
UPDATE task_groups SET state = 'claimed', claim_token = :token
WHERE id IN (SELECT id FROM picked) RETURNING id"""
REPLAYABLE = """SELECT id, min_model_version, use_count, explorer_step, last_used_at, task_no FROM task_groups
WHERE kind = :kind AND state = 'ready' AND min_model_version >= :min_version
UNION ALL SELECT id, min_model_version, use_count, explorer_step, last_used_at, task_no FROM task_groups
WHERE kind = :kind AND state = 'trained' AND use_count < :max_uses
    AND (last_used_at <= :used_before OR last_used_at > :now) AND min_model_version >= :min_version
    AND pruned_at IS NULL AND teachers_pruned_at IS NULL AND history_id >= :since
ORDER BY 3, 5, 6, 1"""
TAKE_CHOSEN = """UPDATE task_groups SET state = 'claimed', claim_token = :token
WHERE id IN (SELECT id FROM task_groups WHERE id IN :ids AND state IN ('ready', 'trained'){skip_locked})
RETURNING id"""
RENEW = "UPDATE claims SET lease_until = :until WHERE token = :token AND state = 'open'"
ENTER = """INSERT INTO ledger_entries (history_id, group_id, use_no, trainer_step, claim_token, entered_at)
SELECT :history, id, use_count + 1, :step, :token, :now FROM task_groups
WHERE claim_token = :token ORDER BY id"""
SET_TRAINED = """UPDATE task_groups SET state = 'trained', use_count = use_count + 1, last_used_at = :now,
    claim_token = NULL WHERE claim_token = :token"""

# -- weights, evaluation ------------------------------------------------------------------------
_VERSION = "version, path, digest, nbytes, method"
NEWEST_HERE = "SELECT max(version) FROM weight_versions WHERE history_id = :history AND voided_in IS NULL"
PUBLISH = f"""INSERT INTO weight_versions ({_VERSION}, history_id, published_at)
VALUES (:version, :path, :digest, :nbytes, :method, :history, :now)
ON CONFLICT (version) WHERE voided_in IS NULL DO UPDATE SET path = excluded.path, digest = excluded.digest,
    nbytes = excluded.nbytes, method = excluded.method, history_id = excluded.history_id,
    published_at = excluded.published_at"""
NOTE_LOADED = """INSERT INTO loaded_weights (version, history_id, worker, received, held, proof, loaded_at)
VALUES (:version, :history, :worker, :received, :held, :proof, :now)"""
HELD_OTHERWISE = """SELECT worker FROM loaded_weights
WHERE received = :received AND held <> '' AND :held <> '' AND held <> :held
    AND substr(held, 1, 16) = substr(:held, 1, 16) AND version = :version ORDER BY id"""
LATEST_VERSION = f"""SELECT {_VERSION} FROM weight_versions WHERE voided_in IS NULL
ORDER BY version DESC LIMIT 1"""
ONE_VERSION = f"SELECT {_VERSION} FROM weight_versions WHERE voided_in IS NULL AND version = :version"
ASK_EVAL = """INSERT INTO eval_requests (history_id, step, version, asked_at)
VALUES (:history, :step, :version, :now) ON CONFLICT DO NOTHING"""
EVAL_AT = "SELECT id, step, version FROM eval_requests WHERE history_id = :history AND step = :step"
GLANCE = """SELECT h.value, CAST(s.value AS TEXT), e.id, e.step, e.version,
    v.version, v.path, v.digest, v.nbytes, v.method
FROM counters h LEFT JOIN job_state s ON s.key = :finished
LEFT JOIN eval_requests e ON e.id = (
    SELECT min(id) FROM eval_requests WHERE history_id = h.value AND done_at IS NULL)
LEFT JOIN weight_versions v ON v.voided_in IS NULL AND v.version = (
    SELECT max(version) FROM weight_versions WHERE voided_in IS NULL)
WHERE h.name = 'history'"""
FINISH_EVAL = "UPDATE eval_requests SET done_at = :now WHERE id = :id AND done_at IS NULL"
EVAL_DONE = "SELECT done_at IS NOT NULL FROM eval_requests WHERE id = :id"

# -- liveness, state, metrics -------------------------------------------------------------------
BEAT = """INSERT INTO participants (role, name, pid, host, state, detail, history_id, beat_at)
VALUES (:role, :name, :pid, :host, :state, :detail, :history, :now)
ON CONFLICT (role, name) DO UPDATE SET pid = excluded.pid, host = excluded.host, state = excluded.state,
    detail = excluded.detail, history_id = excluded.history_id, beat_at = excluded.beat_at"""
PARTICIPANTS = """SELECT role, name, pid, host, state, :now - beat_at, CAST(detail AS TEXT), beat_at
FROM participants WHERE history_id = :history ORDER BY role, name"""
NEWEST_GROUP_AGE = "SELECT :now - written_at FROM task_groups ORDER BY id DESC LIMIT 1"
FORGET_PARTICIPANTS = "DELETE FROM participants"
SET_STATE = """INSERT INTO job_state (key, value) VALUES (:key, :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value"""
GET_STATE = "SELECT CAST(value AS TEXT) FROM job_state WHERE key = :key"
LOG_METRICS = """INSERT INTO metrics (history_id, role, step, metrics)
VALUES (:history, :role, :step, :metrics)
ON CONFLICT (role, step, history_id) DO UPDATE SET metrics = excluded.metrics, voided_in = NULL"""
READ_METRICS = """SELECT step, CAST(metrics AS TEXT) FROM metrics
WHERE role = :role AND step > :after_step AND voided_in IS NULL ORDER BY step, history_id"""
NEWEST_METRICS = """SELECT step, CAST(metrics AS TEXT) FROM metrics
WHERE role = :role AND voided_in IS NULL ORDER BY step DESC, history_id DESC LIMIT :newest"""
METRICS_OF_SIDES = """SELECT role, step, CAST(metrics AS TEXT) FROM metrics
WHERE voided_in IS NULL AND step >= :first AND (role = 'trainer' OR role LIKE 'explorer%')
ORDER BY history_id, step"""

# -- resume -------------------------------------------------------------------------------------
GIVE_ALL_BACK = """UPDATE task_groups SET claim_token = NULL,
    state = CASE WHEN use_count = 0 THEN 'ready' ELSE 'trained' END WHERE claim_token IS NOT NULL"""
END_ALL_CLAIMS = "UPDATE claims SET state = 'void' WHERE state = 'open'"
VOID_USES = "UPDATE ledger_entries SET voided_in = :history WHERE trainer_step > :step AND voided_in IS NULL"
RECOUNT_USES = """UPDATE task_groups SET use_count = (SELECT count(*) FROM ledger_entries l
    WHERE l.group_id = task_groups.id AND l.voided_in IS NULL)
WHERE id IN (SELECT group_id FROM ledger_entries WHERE voided_in = :history)"""
TRAINED_TO_READY = """UPDATE task_groups SET state = 'ready', last_used_at = NULL
WHERE state = 'trained' AND use_count = 0"""
VOID_GROUPS = """UPDATE task_groups SET state = 'void' WHERE kind = 'train' AND state = 'ready'
AND (max_model_version > :step OR pruned_at IS NOT NULL OR teachers_pruned_at IS NOT NULL)
RETURNING task_no"""
# Expert groups follow from their file: untrained ones are built again, with the current settings.
VOID_EXPERTS = "UPDATE task_groups SET state = 'void' WHERE kind = 'expert' AND state = 'ready'"
VOID_VERSIONS = "UPDATE weight_versions SET voided_in = :history WHERE version > :step AND voided_in IS NULL"
# Metrics of explorers stay valid for the groups that stay; a repeated step replaces them.
VOID_METRICS = """UPDATE metrics SET voided_in = :history
WHERE step > :step AND voided_in IS NULL AND role NOT LIKE 'explorer%'"""
# Two parts, one for each index: ready groups and claimed groups.
FIRST_UNTRAINED = """SELECT min(task_no) FROM (
    SELECT task_no FROM task_groups WHERE kind = 'train' AND state = 'ready'
    UNION ALL SELECT task_no FROM task_groups
    WHERE claim_token IS NOT NULL AND kind = 'train' AND state = 'claimed' AND use_count = 0) t
WHERE task_no >= :first"""
TRAINED_BEYOND = """SELECT task_no FROM task_groups WHERE kind = 'train' AND task_no > :below
    AND state NOT IN ('void', 'stale') AND use_count > 0 ORDER BY task_no"""
ANY_USE_AT = "SELECT 1 FROM ledger_entries WHERE trainer_step = :step AND voided_in IS NULL LIMIT 1"
LEFT_BEFORE = "SELECT 1 FROM histories WHERE id > :history AND from_step < :step LIMIT 1"
VOID_ALL_METRICS = "UPDATE metrics SET voided_in = :history WHERE voided_in IS NULL"
NOTE_VOIDED = "UPDATE histories SET voided_groups = :count WHERE id = :history"
COUNT_READY = "SELECT count(*) FROM task_groups WHERE kind = 'train' AND state = 'ready'"
COUNT_TRAINED = "SELECT count(*) FROM task_groups WHERE kind = 'train' AND state = 'trained'"

# -- reports and pruning ------------------------------------------------------------------------
SCHEMA = "SELECT max(number) FROM schema_migrations"
STATES = "SELECT kind, state, count(*) FROM task_groups GROUP BY kind, state ORDER BY kind, state"
# With a condition SQLite counts row by row, within the limits of a file that others may have made.
COUNT_EXPERIENCES = "SELECT count(*) FROM experiences WHERE run >= 0"
LEDGER_TOTALS = "SELECT count(*), count(DISTINCT trainer_step), max(trainer_step) FROM ledger"
LAST_TRAINED = "SELECT max(trainer_step) FROM ledger_entries WHERE voided_in IS NULL"
USED_TWICE = """SELECT count(*) FROM (
    SELECT 1 FROM ledger GROUP BY experience_id, use_no HAVING count(*) > 1) t"""
MEAN_REWARD = """SELECT avg(e.reward) FROM experiences e JOIN task_groups g ON g.id = e.group_id
WHERE g.kind = 'train' AND g.state NOT IN ('void', 'stale')"""
LAG = """SELECT trainer_step - 1 - min_model_version, count(*) FROM ledger GROUP BY 1 ORDER BY 1"""
RECENT = """SELECT id, key, task_no, state, explorer_step, min_model_version, max_model_version, use_count,
    CAST(task AS TEXT) FROM task_groups
WHERE kind = :kind AND (:state = '' OR state = :state) ORDER BY id DESC LIMIT :limit"""
ONE_GROUP = f"""SELECT {_EXPERIENCE}, e.response_tokens FROM experiences e
WHERE e.group_id = :group_id ORDER BY e.run"""


# -- the report of a run --------------------------------------------------------------------------
_TOKENS = "COALESCE(e.response_tokens, LENGTH(e.response_ids) / 4)"
_PROMPT_TOKENS = "COALESCE(e.prompt_tokens, LENGTH(e.prompt_ids) / 4)"
_TRAINED = "g.use_count > 0 AND g.state NOT IN ('void', 'stale')"
TRAINED_STEPS = f"""SELECT l.trainer_step, count(DISTINCT l.group_id), count(*), sum({_TOKENS}),
    avg(e.reward), min(l.trainer_step - 1 - e.max_model_version),
    max(l.trainer_step - 1 - e.min_model_version), avg(1.0 * (l.trainer_step - 1 - e.min_model_version))
FROM ledger_entries l JOIN task_groups g ON g.id = l.group_id JOIN experiences e ON e.group_id = g.id
WHERE l.voided_in IS NULL AND g.kind = 'train' GROUP BY l.trainer_step ORDER BY l.trainer_step"""
PROMPTS_TRAINED = """SELECT count(DISTINCT g.task_no), count(*), count(DISTINCT g.id),
    count(DISTINCT CAST(g.task AS TEXT)), max(g.task_no)
FROM ledger_entries l JOIN task_groups g ON g.id = l.group_id
WHERE l.voided_in IS NULL AND g.kind = 'train'"""
TASKS_TWICE = """SELECT count(*) FROM (
    SELECT 1 FROM ledger_entries l JOIN task_groups g ON g.id = l.group_id
    WHERE l.voided_in IS NULL AND g.kind = 'train' GROUP BY g.task_no HAVING count(DISTINCT g.id) > 1) t"""
NOT_WHOLE = """SELECT count(*) FROM task_groups g WHERE g.use_count > 0
    AND g.size <> (SELECT count(*) FROM experiences e WHERE e.group_id = g.id)"""
LENGTHS = f"""SELECT {{tokens}}, CASE WHEN {_TRAINED} THEN 1 ELSE 0 END, count(*), sum(e.reward)
FROM experiences e JOIN task_groups g ON g.id = e.group_id
WHERE g.kind IN ('train', 'dropped') OR (g.kind >= 'draw:' AND g.kind < 'draw;') GROUP BY 1, 2 ORDER BY 1"""
ANSWER_LENGTHS, PROMPT_LENGTHS = LENGTHS.format(tokens=_TOKENS), LENGTHS.format(tokens=_PROMPT_TOKENS)
ANSWERS_DROPPED = f"""SELECT count(*) FROM experiences e JOIN task_groups g ON g.id = e.group_id
WHERE g.kind = 'train' AND {_TRAINED} AND CAST(e.metrics AS TEXT) LIKE '%"experience_pipeline/dropped"%'"""
HISTORIES = "SELECT id, from_step, started_at, voided_groups FROM histories ORDER BY id"
ENTRIES = """SELECT history_id, trainer_step, voided_in, max(entered_at) FROM ledger_entries
GROUP BY history_id, trainer_step, voided_in ORDER BY max(entered_at)"""
VERSIONS = """SELECT version, history_id, digest, nbytes, method FROM weight_versions
WHERE voided_in IS NULL ORDER BY version"""
LOADED = "SELECT version, history_id, worker, received, held, proof FROM loaded_weights ORDER BY id"


# -- the studio's pages -------------------------------------------------------------------------
def indexed_experiences(dialect: str) -> str:
    """Statement for what the studio's index has of experiences, the newest first."""
    size = "length" if dialect == "sqlite" else "octet_length"
    return f"""SELECT e.id, e.group_id, e.run, g.kind, g.explorer_step, CAST(g.task AS TEXT), g.task_no,
    e.reward, e.max_model_version, {size}(e.response_ids), e.num_turns, CAST(e.metrics AS TEXT),
    e.response_mask, e.min_model_version, e.prompt_text, e.response_text
FROM experiences e JOIN task_groups g ON g.id = e.group_id
WHERE e.id > :below AND e.id <= :last ORDER BY e.id DESC LIMIT :limit"""


LAST_EXPERIENCE = "SELECT coalesce(max(id), 0) FROM experiences"
# The first group's birth tells one database from another; groups are never deleted.
FIRST_BIRTH = "SELECT written_at FROM task_groups ORDER BY id LIMIT 1"
BEGINNINGS = """SELECT e.id, g.state, substr(e.prompt_text, 1, 2000), substr(e.response_text, 1, 600)
FROM experiences e JOIN task_groups g ON g.id = e.group_id WHERE e.id IN :ids"""
ABOUT_GROUP = """SELECT CAST(task AS TEXT), kind, state, explorer_step, task_no, key, use_count, size
FROM task_groups WHERE id = :group_id"""
USES_OF_GROUP = """SELECT trainer_step FROM ledger_entries
WHERE group_id = :group_id AND voided_in IS NULL ORDER BY 1"""
FIRST_OF_GROUP = f"{ONE_GROUP} LIMIT :most"
GROUP_ROWS = """SELECT id, state, CASE WHEN length(CAST(task AS TEXT)) < 65536 THEN CAST(task AS TEXT) END
FROM task_groups WHERE id IN :ids"""
ENDS = """SELECT id, CASE WHEN length(response_text) > 300
    THEN substr(response_text, length(response_text) - 300) ELSE response_text END
FROM experiences WHERE id IN :ids"""
ONE_OF_GROUPS_MEDIA = """SELECT m.data FROM media m JOIN group_media h ON h.digest = m.digest
WHERE h.group_id = :group_id AND m.digest = :digest"""
PART_OF_TOKENS = """SELECT substr(response_ids, :ints, :count * 4), substr(response_mask, :bytes, :count),
    substr(logprobs, :ints, :count * 4), substr(trainer_logprobs, :ints, :count * 4),
    substr(entropies, :ints, :count * 4) FROM experiences WHERE id = :id"""
SCORES_OF_GROUP = """SELECT run, trainer_logprobs, entropies FROM experiences
WHERE group_id = :group_id AND trainer_logprobs IS NOT NULL LIMIT :most"""
SCORED_BESIDE = """SELECT DISTINCT e.group_id
FROM ledger_entries l JOIN experiences e ON e.group_id = l.group_id
WHERE l.voided_in IS NULL AND e.trainer_logprobs IS NOT NULL AND l.trainer_step = (
    SELECT max(trainer_step) FROM ledger_entries WHERE group_id = :group_id AND voided_in IS NULL)
ORDER BY 1 LIMIT 16"""
PART_OF_TEXT = "SELECT substr(response_text, :begin, :count) FROM experiences WHERE id = :id"

# Content that may be dropped (retention.py). The condition on void and stale groups is that of their index.
_USED = """SELECT g.id FROM task_groups g WHERE g.id IN (
    SELECT l.group_id FROM ledger_entries l
    WHERE l.voided_in IS NULL AND l.trainer_step > :above AND l.trainer_step <= :upto)
AND g.pruned_at IS NULL AND g.state = 'trained' AND (g.use_count >= :uses OR g.min_model_version < :min)
AND NOT EXISTS (SELECT 1 FROM ledger_entries n
    WHERE n.group_id = g.id AND n.voided_in IS NULL AND n.trainer_step > :upto)"""
_DEAD = "SELECT g.id FROM task_groups g WHERE g.pruned_at IS NULL AND g.state IN ('void', 'stale')"
# An estimator's arrays, without ids, are as small as the response's own.
_HAS_TOP_TOKENS = """g.teachers_pruned_at IS NULL AND EXISTS (
    SELECT 1 FROM experiences e WHERE e.group_id = g.id AND e.teacher_ids IS NOT NULL)"""
DROPPABLE_USED = f"{_USED} LIMIT :count"
TEACHERS_OF_USED = f"{_USED} AND {_HAS_TOP_TOKENS} LIMIT :count"
TEACHERS_OF_DEAD = f"{_DEAD} AND {_HAS_TOP_TOKENS} LIMIT :count"
DROPPABLE_EVALS = """SELECT g.id FROM task_groups g WHERE g.pruned_at IS NULL
AND g.state NOT IN ('void', 'stale') AND (g.kind IN (SELECT 'eval:' || id FROM eval_requests
    WHERE done_at IS NOT NULL AND step > :above AND step <= :upto)
    OR (g.kind = 'dropped' AND g.explorer_step > :above AND g.explorer_step <= :upto))
LIMIT :count"""
DROPPABLE_DEAD = f"{_DEAD} LIMIT :count"
NOTE_TEACHERS_DROPPED = "UPDATE task_groups SET teachers_pruned_at = :now WHERE id IN :ids"
DROP_TEACHERS = """UPDATE experiences SET teacher_ids = NULL, teacher_logprobs = NULL
WHERE teacher_logprobs IS NOT NULL AND group_id IN :ids"""
NOTE_DROPPED = "UPDATE task_groups SET pruned_at = :now WHERE id IN :ids"
DROP_CONTENT = """UPDATE experiences SET prompt_tokens = length(prompt_ids) / 4,
    response_tokens = length(response_ids) / 4, prompt_text = NULL, response_text = NULL, prompt_ids = NULL,
    response_ids = NULL, response_mask = NULL, logprobs = NULL, teacher_ids = NULL, teacher_logprobs = NULL,
    trainer_logprobs = NULL, entropies = NULL
WHERE response_ids IS NOT NULL AND group_id IN :ids"""
# SQLite updates rows in place, which would leave many pages nearly empty: rows are moved instead.
_KEPT = """id, group_id, run, reward, min_model_version, max_model_version, num_turns, metrics, info,
    prompt_tokens, response_tokens"""
TAKE_OUT = f"""INSERT INTO temp.kept ({_KEPT}) SELECT id, group_id, run, reward, min_model_version,
    max_model_version, num_turns, metrics, info, length(prompt_ids) / 4, length(response_ids) / 4
FROM experiences WHERE response_ids IS NOT NULL AND group_id IN :ids"""
PLACE_OF_KEPT = f"CREATE TEMP TABLE IF NOT EXISTS kept AS SELECT {_KEPT} FROM experiences WHERE 0"
DROP_TAKEN = "DELETE FROM experiences WHERE id IN (SELECT id FROM temp.kept)"
PUT_BACK = f"INSERT INTO experiences ({_KEPT}) SELECT {_KEPT} FROM temp.kept ORDER BY id"
EMPTY_KEPT = "DELETE FROM temp.kept"

HOLDS_MEDIA = "SELECT EXISTS (SELECT 1 FROM group_media)"
HELD_BY = "SELECT DISTINCT digest FROM group_media WHERE group_id IN :ids"
DROP_HELD = "DELETE FROM group_media WHERE group_id IN :ids"
DROP_MEDIA = (
    "DELETE FROM media WHERE digest IN :ids"
    " AND NOT EXISTS (SELECT 1 FROM group_media WHERE group_media.digest = media.digest)"
)


def size_of(dialect: str) -> str:
    """Statement for the size of the database, in bytes."""
    if dialect == "postgresql":
        return "SELECT pg_database_size(current_database())"
    return "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
