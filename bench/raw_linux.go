package main

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"
)

// sqliteOnlyQueue is a database with the same schema as the shipped program. It serves to measure SQLite alone:
// sqliteOnlyQueue writes the rows that an enqueue writes, without a service, a socket or validation.
type sqliteOnlyQueue struct {
	db           *sql.DB
	enqueueStmts []*sql.Stmt // prepared statements of enqueueStatementsSQL, in the same order
	lastJobSeq   int64       // number of the last job
	lastEventSeq int64       // number of the last event
}

// enqueueStatementsSQL lists the SQL statements that an enqueue runs, in this order. For several jobs in one
// transaction, the second to fourth statement run once per job, and the others once.
var enqueueStatementsSQL = []string{
	`BEGIN IMMEDIATE`,
	`SELECT seq FROM jobs WHERE id = ?`,
	`INSERT INTO jobs (seq, id, queue, uid, state, place, lane, rank, priority, max_attempts,
			created_at, updated_at, run_at, due_at, since, arrival, expires_at, terms, stored)
		VALUES (?, ?, 'default', 0, 3, 1, 1, ?, 5, 4, ?, ?, ?, ?, ?, ?, 0, ?, 600)`,
	`INSERT INTO events (seq, at, kind, job, id, state, detail) VALUES (?, ?, 'enqueued', ?, ?, 3, '{"uid":0}')`,
	`UPDATE meta SET pending = pending + ?, next_seq = ?, enqueued = ?, next_event = ?`,
	`COMMIT`,
}

// newSQLiteOnlyQueue creates a database with the schema of the database of the service s.
func (b *bench) newSQLiteOnlyQueue(s *service) (*sqliteOnlyQueue, error) {
	from, err := openDB(filepath.Join(s.dir, "queuectl.db"), "&mode=ro")
	if err != nil {
		return nil, err
	}
	defer from.Close()
	rows, err := from.Query(
		`SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid`)
	if err != nil {
		return nil, fmt.Errorf("cannot read the schema: %w", err)
	}
	defer rows.Close()
	db, err := openDB(filepath.Join(b.dir, "raw.db"),
		"&_pragma=journal_mode(wal)&_pragma=synchronous(FULL)&_pragma=cache_size(-8192)")
	if err != nil {
		return nil, err
	}
	r := &sqliteOnlyQueue{db: db}
	for rows.Next() {
		var statement string
		if err := rows.Scan(&statement); err != nil {
			return nil, errors.Join(err, db.Close())
		}
		if _, err := db.Exec(statement); err != nil {
			return nil, errors.Join(fmt.Errorf("cannot copy the schema: %w", err), db.Close())
		}
	}
	if _, err := db.Exec(
		`INSERT INTO meta (one, min_reader, epoch, next_seq, enqueued, next_event,
			blocked, held, pending, failed, processing, completed, dead, cancelled, reserved)
		VALUES (1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, '')`); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	for _, text := range enqueueStatementsSQL {
		stmt, err := db.Prepare(text)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot prepare the statement %s: %w", text, err), db.Close())
		}
		r.enqueueStmts = append(r.enqueueStmts, stmt)
	}
	return r, rows.Err()
}

func (r *sqliteOnlyQueue) close() error { return r.db.Close() }

// commitJobs stores n jobs in one transaction.
func (r *sqliteOnlyQueue) commitJobs(jobCount int) error {
	if _, err := r.enqueueStmts[0].Exec(); err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	const jobSettings = `{"command":"true","shell":"/bin/sh -c","umask":18,"kill_after":10000,"output_limit":1048576}`
	for range jobCount {
		r.lastJobSeq++
		r.lastEventSeq++
		id := strconv.FormatInt(r.lastJobSeq, 10)
		var existingSeq int64
		if err := r.enqueueStmts[1].QueryRow(id).Scan(&existingSeq); !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("the id %s is already in use, or its lookup failed: %w", id, err)
		}
		if _, err := r.enqueueStmts[2].Exec(r.lastJobSeq, id, now-300_000, now, now, now, now, now, r.lastJobSeq,
			jobSettings); err != nil {
			return err
		}
		if _, err := r.enqueueStmts[3].Exec(r.lastEventSeq, now, r.lastJobSeq, id); err != nil {
			return err
		}
	}
	if _, err := r.enqueueStmts[4].Exec(jobCount, r.lastJobSeq+1, r.lastJobSeq, r.lastEventSeq+1); err != nil {
		return err
	}
	_, err := r.enqueueStmts[5].Exec()
	return err
}

// enqueueForDuration stores jobs for the given time, each with its own commit.
func (r *sqliteOnlyQueue) enqueueForDuration(duration time.Duration) (throughput, error) {
	began := time.Now()
	waits, err := repeatUntil(began.Add(duration), func() error { return r.commitJobs(1) })
	return throughput{ratesPerSecond: []float64{float64(len(waits)) / time.Since(began).Seconds()}, latencySeconds: waits},
		err
}

// enqueueBatch stores n jobs in one commit.
func (r *sqliteOnlyQueue) enqueueBatch(jobCount int) (throughput, error) {
	began := time.Now()
	err := r.commitJobs(jobCount)
	return throughput{ratesPerSecond: []float64{float64(jobCount) / time.Since(began).Seconds()}}, err
}
