package sqlstore

import (
	"errors"
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// Places: where a job stands for the claim. A job that is leased and not known to
// have started keeps its place; meta.reserved names it with its fence.
const (
	placeNone    = 0 // held, blocked or ended
	placeReady   = 1 // in the ready index, in order of rank
	placeTimed   = 2 // waits for due_at
	placeRunning = 3 // leased and started
	placeBarred  = 4 // waits for room for one more job of its user
)

// migrations hold the statements that lead from schema version i to i + 1. They
// run forward only, each version in one transaction with its number.
//
// In a row of jobs or attempts the columns that may be long come last: SQLite reads
// what stands before them without them.
var migrations = [][]string{{
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
		output_bytes INTEGER NOT NULL DEFAULT 0,  -- of all outputs, kept
		ranked_by    TEXT    NOT NULL DEFAULT '', -- the order of all ranks, '' while they are being made anew
		users        TEXT    NOT NULL DEFAULT '', -- UID/WAITING of each user that has changed since its row was written
		reserved     TEXT    NOT NULL DEFAULT ''  -- SEQ/FENCE of each job that is leased and not known to have started
	) STRICT`,
	`INSERT INTO meta (one, min_reader, epoch, next_seq, enqueued, next_event, blocked, held, pending, failed, processing, completed, dead, cancelled)
		VALUES (1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)`,
	`CREATE TABLE jobs (
		seq          INTEGER PRIMARY KEY,
		id           TEXT    NOT NULL,
		queue        TEXT    NOT NULL DEFAULT 'default',
		uid          INTEGER NOT NULL,
		state        INTEGER NOT NULL CHECK (state BETWEEN 1 AND 8),
		place        INTEGER NOT NULL CHECK (place BETWEEN 0 AND 4),
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
		worker       TEXT    NOT NULL DEFAULT '',
		reason       TEXT    NOT NULL DEFAULT '',
		labels       TEXT    NOT NULL DEFAULT '', -- JSON, '' if there are none
		error        TEXT    NOT NULL DEFAULT '',
		terms        TEXT    NOT NULL,            -- JSON of what it runs by, but for labels, env and stdin
		input        TEXT    DEFAULT ''           -- JSON of env and stdin, '' if there are none, NULL if it stands in inputs
	) STRICT`,
	`CREATE UNIQUE INDEX jobs_id ON jobs (id)`,
	`CREATE INDEX jobs_state ON jobs (state, seq)`,
	`CREATE INDEX jobs_ready ON jobs (rank, seq) WHERE place = 1`,
	`CREATE INDEX jobs_timed ON jobs (due_at) WHERE place = 2`,
	`CREATE INDEX jobs_running ON jobs (seq) WHERE place = 3`,
	`CREATE INDEX jobs_barred ON jobs (uid, rank, seq) WHERE place = 4`,
	`CREATE INDEX jobs_expiry ON jobs (expires_at) WHERE expires_at > 0 AND state < 5`,
	`CREATE INDEX jobs_ended ON jobs (state, ended_at) WHERE state > 5`,
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
		output_bytes INTEGER NOT NULL DEFAULT 0, -- -1 if it was removed to make room
		output_ref   TEXT,
		error        TEXT    NOT NULL,
		output       BLOB,
		PRIMARY KEY (seq, n)
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX attempts_ref ON attempts (output_ref) WHERE output_ref IS NOT NULL`,
	`CREATE INDEX attempts_output ON attempts (ended_at) WHERE output_bytes > 0`,
	`CREATE TABLE removed (seq INTEGER PRIMARY KEY) STRICT`, // jobs whose attempts are still there
	`CREATE TABLE events (
		seq    INTEGER PRIMARY KEY,
		at     INTEGER NOT NULL,
		kind   TEXT    NOT NULL,
		job    INTEGER NOT NULL,
		id     TEXT    NOT NULL,
		state  INTEGER NOT NULL,
		detail TEXT    NOT NULL
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
		at    INTEGER NOT NULL  -- of the last change of stage
	) STRICT`,
	`CREATE INDEX batches_name ON batches (uid, name)`,
	`CREATE INDEX batches_forgotten ON batches (at) WHERE stage = 2`,
	`CREATE TABLE frames (
		n     INTEGER PRIMARY KEY,
		batch INTEGER NOT NULL, -- below 0 that of a damaged frame, which was left behind
		count INTEGER NOT NULL, -- of its jobs; of those that were lost, if it is damaged
		first INTEGER NOT NULL, -- their seqs
		last  INTEGER NOT NULL,
		jobs  BLOB    NOT NULL
	) STRICT`,
	`CREATE INDEX frames_batch ON frames (batch, n)`,
	`CREATE INDEX frames_first ON frames (first) WHERE batch > 0`,
	`CREATE TABLE staged_ids (id TEXT PRIMARY KEY, batch INTEGER NOT NULL) STRICT, WITHOUT ROWID`,
	`CREATE TABLE users (
		uid     INTEGER PRIMARY KEY,
		waiting INTEGER NOT NULL -- jobs, kept; users without any have no row
	) STRICT`,
	`CREATE TABLE owners (
		uid  INTEGER PRIMARY KEY, -- below 0 a former owner, whose uid is somebody else's now
		name TEXT    NOT NULL,
		was  INTEGER NOT NULL DEFAULT 0, -- of a former owner: the uid
		upto INTEGER NOT NULL DEFAULT 0, -- while its jobs below this seq change hands, else 0
		at   INTEGER NOT NULL DEFAULT 0, -- those below this one have
		keys INTEGER NOT NULL DEFAULT 0  -- its keys up to this number are to go
	) STRICT`,
	`CREATE TABLE settings (
		key   TEXT PRIMARY KEY,
		value TEXT    NOT NULL,
		uid   INTEGER NOT NULL,
		at    INTEGER NOT NULL
	) STRICT, WITHOUT ROWID`,
	`CREATE TABLE garbage (ref TEXT PRIMARY KEY) STRICT, WITHOUT ROWID`,
	`CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID`,
}}

// ErrNewerSchema refuses a database that a newer queuectl has written and that
// this one cannot use. The file is left as it is.
var ErrNewerSchema = &queue.Error{Code: queue.CodeUnsupported, Message: "newer schema"}

// checkSchema refuses a schema that these steps do not lead to, unless the file says
// that it may be used all the same.
func checkSchema(c *conn, steps [][]string) error {
	version, err := c.number(`PRAGMA user_version`)
	if err != nil || version >= 0 && version <= int64(len(steps)) {
		return err
	}
	oldest, err := c.number(`SELECT min_reader FROM meta`)
	if err == nil && oldest <= int64(len(steps)) && oldest > 0 {
		return nil
	}
	var e *sqliteError
	if errors.As(err, &e) && kindOf(err) != mistake { // else there is no such table or column
		return err
	}
	return queue.Errorf(ErrNewerSchema.Code, "the database has schema %d, this queuectl knows %d: install the newer queuectl again", version, len(steps))
}

// migrate brings the schema up to date; each version is one transaction, so a
// crash leaves the old one or the new one.
func migrate(c *conn, steps [][]string) error {
	if err := checkSchema(c, steps); err != nil {
		return err
	}
	version, err := c.number(`PRAGMA user_version`)
	if err != nil {
		return err
	}
	for v := version; v < int64(len(steps)); v++ {
		if err := migrateOne(c, int(v), steps[v]); err != nil {
			return fmt.Errorf("migrate to schema %d: %w", v+1, err)
		}
	}
	return nil
}

func migrateOne(c *conn, from int, statements []string) error {
	return carryOutAll(c, append(statements, fmt.Sprintf(`PRAGMA user_version = %d`, from+1)))
}

// carryOutAll carries out statements in one transaction.
func carryOutAll(c *conn, statements []string) error {
	if _, err := c.exec(`BEGIN IMMEDIATE`); err != nil {
		return err
	}
	for _, s := range statements {
		if _, err := c.exec(s); err != nil {
			c.exec(`ROLLBACK`) // the first error is the one to tell
			return err
		}
	}
	_, err := c.exec(`COMMIT`)
	return err
}
