package database

// SchemaMigrations holds, at index i, the statements that change the tables from schema version i to version i + 1.
// Schema versions only increase: no statements lead back to an older version. The statements of one version are
// executed in one transaction, which also stores the version number.
//
// In rows of jobs and attempts, columns with long values come last: SQLite can read the columns before them
// without reading the long values. In the table jobs, numbers come before texts: PostgreSQL finds a column that
// follows a text only by walking over all columns before it. See docs/decisions/0001.
var SchemaMigrations = [][]string{{
	`CREATE TABLE meta (
		one          INTEGER PRIMARY KEY CHECK (one = 1),
		min_reader   INTEGER NOT NULL, -- the oldest schema version whose program may use this file
		epoch        INTEGER NOT NULL,
		next_seq     INTEGER NOT NULL,
		enqueued     INTEGER NOT NULL,
		next_event   INTEGER NOT NULL,
		blocked      INTEGER NOT NULL CHECK (blocked >= 0), -- jobs in each state, kept
		held         INTEGER NOT NULL CHECK (held >= 0),
		pending      INTEGER NOT NULL CHECK (pending >= 0),
		failed       INTEGER NOT NULL CHECK (failed >= 0),
		processing   INTEGER NOT NULL CHECK (processing >= 0),
		completed    INTEGER NOT NULL CHECK (completed >= 0),
		dead         INTEGER NOT NULL CHECK (dead >= 0),
		cancelled    INTEGER NOT NULL CHECK (cancelled >= 0),
		commits      INTEGER NOT NULL DEFAULT 0,  -- transactions that changed what stands in this row
		output_bytes INTEGER NOT NULL DEFAULT 0,  -- of all outputs, kept
		ranked_by    TEXT    NOT NULL DEFAULT '', -- the order of all ranks, '' while they are being made anew
		ordered_by   TEXT    NOT NULL DEFAULT '', -- the order that new ranks are made by
		users        TEXT    NOT NULL DEFAULT '', -- UID/WAITING/BYTES/OUTPUTS of each user that has changed since its row was written
		queues       TEXT    NOT NULL DEFAULT '', -- NAME=WAITING/UID/KEPT/KEPT_BYTES of each queue that has changed since its row was written
		hours_upto   INTEGER NOT NULL DEFAULT 0,  -- figures of minutes before are in those of hours
		days_upto    INTEGER NOT NULL DEFAULT 0,  -- and those of hours before in those of days
		reserved     TEXT    NOT NULL DEFAULT ''  -- SEQ/FENCE or SEQ/FENCE/NODE of each job that is leased and not known to have started
	) STRICT`,
	`INSERT INTO meta (one, min_reader, epoch, next_seq, enqueued, next_event, blocked, held, pending, failed, ` +
		`processing, completed, dead, cancelled)
		VALUES (1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)`,
	`CREATE TABLE jobs (
		seq          INTEGER PRIMARY KEY,
		uid          INTEGER NOT NULL,
		state        INTEGER NOT NULL CHECK (state BETWEEN 1 AND 8),
		place        INTEGER NOT NULL CHECK (place BETWEEN 0 AND 3), -- rules.Standing; meta.reserved names what is leased and stands as before
		lane         INTEGER NOT NULL, -- that it stands in, if its place is 1
		rank         INTEGER NOT NULL,
		priority     INTEGER NOT NULL,
		max_attempts INTEGER NOT NULL,
		attempts     INTEGER NOT NULL DEFAULT 0,
		runs         INTEGER NOT NULL DEFAULT 0,
		deferred     INTEGER NOT NULL DEFAULT 0,
		refunds      INTEGER NOT NULL DEFAULT 0,
		crashes      INTEGER NOT NULL DEFAULT 0,
		suspect      INTEGER NOT NULL DEFAULT 0,
		fence        INTEGER NOT NULL DEFAULT 0,
		created_at   INTEGER NOT NULL,
		updated_at   INTEGER NOT NULL,
		run_at       INTEGER NOT NULL,
		due_at       INTEGER NOT NULL,
		since        INTEGER NOT NULL,
		arrival      INTEGER NOT NULL,
		expires_at   INTEGER NOT NULL DEFAULT 0,
		started_at   INTEGER NOT NULL DEFAULT 0,
		ended_at     INTEGER NOT NULL DEFAULT 0,
		exit_code    INTEGER NOT NULL DEFAULT -1,
		signal       INTEGER NOT NULL DEFAULT 0,
		pid          INTEGER NOT NULL DEFAULT 0,
		paused_at    INTEGER NOT NULL DEFAULT 0, -- while it runs, if a person has it paused
		paused_by    INTEGER NOT NULL DEFAULT 0, -- the uid of that person
		hooks        INTEGER NOT NULL DEFAULT 0, -- queue.HookSet
		hook_uid     INTEGER NOT NULL DEFAULT 0, -- of a hook: whose job it is for
		parents      INTEGER NOT NULL DEFAULT 0, -- how many there were
		kept         INTEGER NOT NULL DEFAULT 0, -- 1 if its queue had a retention of its own when it ended
		node         INTEGER NOT NULL DEFAULT 0, -- that had it leased last
		outputs      INTEGER NOT NULL DEFAULT 0, -- bytes of them
		unique_for   INTEGER NOT NULL DEFAULT 0, -- in ms
		stored       INTEGER NOT NULL,           -- bytes of its texts and of the rest of its row
		input_gone   INTEGER NOT NULL DEFAULT 0, -- queue.InputParts
		id           TEXT    NOT NULL,
		queue        TEXT    NOT NULL DEFAULT 'default',
		worker       TEXT    NOT NULL DEFAULT '',
		reason       TEXT    NOT NULL DEFAULT '',
		ran          TEXT    NOT NULL DEFAULT '', -- its last attempt, if that has no row of its own; see plainAttempt
		units        TEXT    NOT NULL DEFAULT '', -- of resources that it holds while it is leased
		unique_key   TEXT    NOT NULL DEFAULT '', -- that no other unfinished job of the user has
		demands      TEXT    NOT NULL DEFAULT '', -- JSON, '' if there are none
		schedule     TEXT    NOT NULL DEFAULT '', -- that made it
		progress     TEXT    NOT NULL DEFAULT '', -- JSON, '' if the last attempt has told none
		labels       TEXT    NOT NULL DEFAULT '', -- JSON, '' if there are none
		error        TEXT    NOT NULL DEFAULT '',
		terms        TEXT    NOT NULL,            -- JSON of what it runs by, but for labels, env and stdin
		input        TEXT    DEFAULT ''           -- JSON of env and stdin, '' if there are none, NULL if it stands in inputs
	) STRICT`,
	// The id of a job that was enqueued without an id is its number (seq). Such a job is found by its number, so this
	// index leaves it out.
	`CREATE UNIQUE INDEX jobs_id ON jobs (id) WHERE id <> CAST(seq AS TEXT)`,
	`CREATE INDEX jobs_state ON jobs (state, seq)`,
	`CREATE INDEX jobs_ready ON jobs (lane, rank, seq) WHERE place = 1`,
	`CREATE INDEX jobs_timed ON jobs (due_at) WHERE place = 2`,
	// BestWaitingPriority uses this index.
	`CREATE INDEX jobs_retried ON jobs (uid, rank, seq) WHERE place = 2 AND state = 4`,
	`CREATE INDEX jobs_running ON jobs (seq) WHERE place = 3`,
	`CREATE INDEX jobs_expiry ON jobs (expires_at) WHERE expires_at > 0 AND state < 5`,
	`CREATE INDEX jobs_unique ON jobs (uid, unique_key, ended_at) WHERE unique_key <> ''`,
	`CREATE INDEX jobs_ended ON jobs (kept, state, ended_at) WHERE state > 5`,
	`CREATE INDEX jobs_kept ON jobs (queue, state, ended_at) WHERE kept = 1`,
	`CREATE INDEX jobs_outputs ON jobs (queue, ended_at, outputs) WHERE kept = 1 AND outputs > 0`,
	`CREATE INDEX jobs_inputs ON jobs (uid, ended_at) WHERE state > 5 AND input IS NULL AND state <> 7`,
	`CREATE INDEX jobs_user_outputs ON jobs (uid, ended_at) WHERE outputs > 0`,
	`CREATE INDEX jobs_hooks ON jobs (hook_uid) WHERE hooks > 127 AND state < 5`,
	`CREATE INDEX jobs_schedule ON jobs (schedule, uid, seq) WHERE schedule <> '' AND state < 6`,
	`CREATE TABLE lanes (
		id        INTEGER PRIMARY KEY,
		queue     TEXT    NOT NULL,
		uid       INTEGER NOT NULL,
		demands   TEXT    NOT NULL, -- that its jobs make, '' if there are none: then what follows is not kept
		needs     TEXT    NOT NULL, -- GATE/KIND/UNITS of each
		head_rank INTEGER NOT NULL, -- at or before its first job
		head_seq  INTEGER NOT NULL,
		shut      INTEGER NOT NULL, -- the gate that it waits for, 0 if it is open; see rules.Lane
		priority  INTEGER NOT NULL  -- of the job at the head; see rules.Lane
	) STRICT`,
	`CREATE UNIQUE INDEX lanes_name ON lanes (queue, uid, demands)`,
	// BestWaitingPriority uses this index and the next one.
	`CREATE INDEX lanes_plain ON lanes (uid) WHERE demands = ''`,
	`CREATE INDEX lanes_user ON lanes (uid, head_rank, head_seq) WHERE demands <> ''`,
	`CREATE INDEX lanes_open ON lanes (queue, uid, head_rank, head_seq) WHERE demands <> '' AND shut = 0`,
	`CREATE INDEX lanes_shut ON lanes (shut, queue, head_rank, head_seq) WHERE demands <> '' AND shut <> 0`,
	`CREATE INDEX lanes_shut_user ON lanes (shut, queue, uid, head_rank, head_seq) WHERE demands <> '' AND shut <> 0`,
	`CREATE TABLE gates (
		id    INTEGER PRIMARY KEY,
		uid   INTEGER NOT NULL, -- whose it is, queue.Everybody if nobody's
		kind  INTEGER NOT NULL,
		key   TEXT    NOT NULL,
		n     INTEGER NOT NULL, -- of a lock or a rate
		per   INTEGER NOT NULL, -- of a rate, in ms
		lanes INTEGER NOT NULL DEFAULT 0, -- that need it
		jobs  INTEGER NOT NULL DEFAULT 0, -- that name it, if it is a lock or a rate, and have not ended
		opens INTEGER NOT NULL DEFAULT 0, -- when to look at a rate again, 0 if it need not be
		kept  INTEGER NOT NULL DEFAULT 0  -- 1 if its rule was set, and no job changes it
	) STRICT`,
	`CREATE UNIQUE INDEX gates_key ON gates (uid, kind, key)`,
	`CREATE INDEX gates_idle ON gates (id) WHERE lanes = 0 AND jobs = 0 AND opens = 0 AND kept = 0`,
	`CREATE INDEX gates_kept ON gates (id) WHERE kept = 1`,
	`CREATE INDEX gates_opens ON gates (opens) WHERE opens > 0`,
	`CREATE TABLE starts (gate INTEGER NOT NULL, at INTEGER NOT NULL) STRICT`, // recent starts, for rate limits
	`CREATE INDEX starts_at ON starts (gate, at)`,
	`CREATE TABLE edges (
		id        INTEGER PRIMARY KEY AUTOINCREMENT, -- never again: see ended
		parent    INTEGER NOT NULL,
		child     INTEGER NOT NULL,  -- which waits for it
		how       INTEGER NOT NULL,  -- the parent is to end
		otherwise INTEGER NOT NULL,
		met       INTEGER NOT NULL DEFAULT 0 -- store.Met
	) STRICT`,
	`CREATE INDEX edges_parent ON edges (parent, met, id)`,
	`CREATE INDEX edges_child ON edges (child, met, id)`,
	`CREATE INDEX edges_open ON edges (id) WHERE met = 0`,
	`CREATE TABLE ended (
		id     INTEGER PRIMARY KEY,
		parent INTEGER NOT NULL, -- whose edges up to this one are to be decided
		uid    INTEGER NOT NULL, -- whose job that is, or was
		state  INTEGER NOT NULL, -- by that it ended so, was removed if 0, or runs anew if rules.Anew
		upto   INTEGER NOT NULL
	) STRICT`,
	`CREATE INDEX ended_parent ON ended (parent, id)`,
	`CREATE INDEX ended_uid ON ended (uid, id)`,
	`CREATE TABLE queues (
		name       TEXT    PRIMARY KEY,
		waiting    INTEGER NOT NULL,            -- jobs of it
		uid        INTEGER NOT NULL,            -- who enqueued the first one
		kept       INTEGER NOT NULL DEFAULT 0,  -- jobs of it whose kept is 1
		kept_bytes INTEGER NOT NULL DEFAULT 0,  -- of their outputs
		rule       TEXT    NOT NULL DEFAULT ''  -- JSON of store.QueueRule, '' if it has none
	) STRICT, WITHOUT ROWID`,
	`CREATE TABLE inputs (
		seq   INTEGER PRIMARY KEY,
		input TEXT NOT NULL -- too long to be written again with each change of its job
	) STRICT`,
	`CREATE TABLE attempts (
		seq          INTEGER NOT NULL,
		n            INTEGER NOT NULL,
		fence        INTEGER NOT NULL,
		worker       TEXT    NOT NULL,
		node         TEXT    NOT NULL,
		pid          INTEGER NOT NULL,
		started_at   INTEGER NOT NULL,
		ended_at     INTEGER NOT NULL,
		exit_code    INTEGER NOT NULL,
		signal       INTEGER NOT NULL,
		reason       TEXT    NOT NULL,
		counted      INTEGER NOT NULL,
		cpu_us       INTEGER NOT NULL,
		peak_rss     INTEGER NOT NULL,
		leftovers    INTEGER NOT NULL,
		dropped      INTEGER NOT NULL,
		output_bytes INTEGER NOT NULL DEFAULT 0, -- -1 if retention_output removed it, -2 if the quota of the user did
		output_ref   TEXT,
		peak_tasks   INTEGER NOT NULL DEFAULT 0,
		result_error TEXT,
		error        TEXT    NOT NULL,
		result       TEXT,                       -- JSON that it has left
		output       BLOB,
		PRIMARY KEY (seq, n)
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX attempts_ref ON attempts (output_ref) WHERE output_ref IS NOT NULL`,
	`CREATE INDEX attempts_output ON attempts (seq, n) WHERE output_bytes > 0`,
	`CREATE TABLE removed (seq INTEGER PRIMARY KEY) STRICT`, // removed jobs that still have rows in other tables
	`CREATE TABLE events (
		seq    INTEGER PRIMARY KEY,
		at     INTEGER NOT NULL,
		kind   TEXT    NOT NULL,
		job    INTEGER NOT NULL,
		id     TEXT    NOT NULL,
		state  INTEGER NOT NULL,
		detail TEXT    NOT NULL,
		private INTEGER -- the uid of a job of which operators and its user alone may know
	) STRICT`,
	`CREATE TABLE keys (
		n   INTEGER PRIMARY KEY,
		uid INTEGER NOT NULL,
		key TEXT    NOT NULL,
		at  INTEGER NOT NULL,
		sum BLOB    NOT NULL,
		ids TEXT    NOT NULL
	) STRICT`,
	`CREATE UNIQUE INDEX keys_key ON keys (uid, key)`,
	`CREATE TABLE batches (
		n     INTEGER PRIMARY KEY,
		uid   INTEGER NOT NULL,
		name  TEXT    NOT NULL,
		stage INTEGER NOT NULL, -- 0 takes frames, 1 is committed, 2 was forgotten, 3 is being removed
		at    INTEGER NOT NULL, -- of the last change of stage
		node  INTEGER NOT NULL DEFAULT 0 -- that took its last frame
	) STRICT`,
	`CREATE INDEX batches_name ON batches (uid, name)`,
	`CREATE INDEX batches_forgotten ON batches (at) WHERE stage = 2`,
	`CREATE TABLE frames (
		n     INTEGER PRIMARY KEY,
		batch INTEGER NOT NULL, -- below 0 that of a damaged frame, which was left behind
		count INTEGER NOT NULL, -- of its jobs; of those that were lost, if it is damaged
		first INTEGER NOT NULL, -- their seqs
		last  INTEGER NOT NULL,
		bytes INTEGER NOT NULL, -- that its jobs use of their user's quota
		jobs  BLOB    NOT NULL
	) STRICT`,
	`CREATE INDEX frames_batch ON frames (batch, n)`,
	`CREATE INDEX frames_first ON frames (first) WHERE batch > 0`,
	`CREATE TABLE staged_ids (id TEXT PRIMARY KEY, batch INTEGER NOT NULL, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID`,
	`CREATE TABLE users (
		uid     INTEGER PRIMARY KEY,
		waiting INTEGER NOT NULL, -- jobs, kept
		bytes   INTEGER NOT NULL, -- that the user's jobs and schedules use; users with 0 waiting jobs and 0 bytes have no row
		outputs INTEGER NOT NULL  -- bytes of these that are outputs
	) STRICT`,
	`CREATE TABLE owners (
		uid  INTEGER PRIMARY KEY, -- below 0 a former owner, whose uid is somebody else's now
		name TEXT    NOT NULL,
		was  INTEGER NOT NULL DEFAULT 0, -- of a former owner: the uid
		upto INTEGER NOT NULL DEFAULT 0, -- while its jobs below this seq change hands, else 0
		at   INTEGER NOT NULL DEFAULT 0, -- those below this one have
		keys INTEGER NOT NULL DEFAULT 0  -- its keys up to this number are to go
	) STRICT`,
	`CREATE TABLE schedules (
		name      TEXT    PRIMARY KEY,
		gen       INTEGER NOT NULL, -- of the definition: the number of the event that told of it
		uid       INTEGER NOT NULL,
		cron      TEXT    NOT NULL,
		zone      TEXT    NOT NULL,
		jitter    INTEGER NOT NULL, -- ms
		catch_up  TEXT    NOT NULL,
		overlap   TEXT    NOT NULL,
		at_boot   INTEGER NOT NULL,
		boot      TEXT    NOT NULL,
		at        INTEGER NOT NULL,
		last_at   INTEGER NOT NULL,
		next_at   INTEGER NOT NULL,
		due_at    INTEGER NOT NULL, -- 0 if it is not due by the clock
		paused_at INTEGER NOT NULL DEFAULT 0,
		paused_by INTEGER,
		note      TEXT    NOT NULL DEFAULT '',
		draft     TEXT    NOT NULL, -- JSON of its jobs, but for env and stdin
		input     TEXT    NOT NULL, -- JSON of these, '' if there are none
		spec      TEXT    NOT NULL, -- JSON of the request
		stored    INTEGER NOT NULL  -- bytes of the schedule that count for its user
	) STRICT`,
	`CREATE INDEX schedules_due ON schedules (due_at, uid, name) WHERE due_at > 0 AND paused_at = 0`,
	`CREATE INDEX schedules_boot ON schedules (boot) WHERE at_boot = 1 AND paused_at = 0`,
	`CREATE INDEX schedules_uid ON schedules (uid)`,
	`CREATE TABLE schedule_runs (
		n       INTEGER PRIMARY KEY,
		name    TEXT    NOT NULL,
		instant INTEGER NOT NULL,
		at      INTEGER NOT NULL,
		outcome TEXT    NOT NULL,
		job     INTEGER NOT NULL, -- that was made, 0 if none was
		id      TEXT    NOT NULL,
		asker   INTEGER, -- who asked for it, NULL if its time had come
		note    TEXT    NOT NULL
	) STRICT`,
	`CREATE INDEX schedule_runs_name ON schedule_runs (name, n)`,
	`CREATE TABLE figures (
		grain     INTEGER NOT NULL, -- store.Grain
		at        INTEGER NOT NULL, -- when the period begins
		queue     TEXT    NOT NULL,
		started   INTEGER NOT NULL, -- attempts, as the next ones
		completed INTEGER NOT NULL,
		failed    INTEGER NOT NULL,
		dead      INTEGER NOT NULL,
		cancelled INTEGER NOT NULL,
		returned  INTEGER NOT NULL,
		waits     BLOB    NOT NULL, -- store.Histogram
		runs      BLOB    NOT NULL,
		others    INTEGER NOT NULL DEFAULT 0, -- 1 of a minute's: under store.OtherQueues in all that was ever recorded
		PRIMARY KEY (grain, at, queue)
	) STRICT, WITHOUT ROWID`,
	`CREATE TABLE usual (
		one  INTEGER PRIMARY KEY CHECK (one = 1),
		list BLOB NOT NULL -- how long commands run; see estimates
	) STRICT`,
	`CREATE TABLE settings (
		key   TEXT PRIMARY KEY,
		value TEXT    NOT NULL,
		uid   INTEGER NOT NULL,
		at    INTEGER NOT NULL
	) STRICT, WITHOUT ROWID`,
	`CREATE TABLE garbage (ref TEXT PRIMARY KEY, node TEXT NOT NULL) STRICT, WITHOUT ROWID`,
	`CREATE INDEX garbage_node ON garbage (node, ref)`,
	`CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID`,
}}
