package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	_ "modernc.org/sqlite" // registers the SQLite driver

	"github.com/queuectl/queuectl/control"
)

// expectedDatabaseCounts lists what must be true in the database after n jobs have run and the service has stopped.
// Each SQL statement returns a count, which is compared with the wanted count.
var expectedDatabaseCounts = []struct {
	counted string
	sql     string
	want    func(n int) int
}{
	{"jobs", `SELECT count(*) FROM jobs`, wantOnePerJob},
	{"completed jobs", `SELECT count(*) FROM jobs WHERE state = 6 AND exit_code = 0 AND attempts = 1`, wantOnePerJob},
	{"completed jobs according to the counter", `SELECT completed FROM meta`, wantOnePerJob},
	{"jobs according to the counters",
		`SELECT blocked + held + pending + failed + processing + completed + dead + cancelled FROM meta`, wantOnePerJob},
	{"leases", `SELECT count(*) FROM jobs, meta WHERE place <> 0 OR reserved <> ''`, wantZero},
	{"jobs with exactly one event \"enqueued\"",
		`SELECT count(*) FROM (SELECT job FROM events WHERE kind = 'enqueued' GROUP BY job HAVING count(*) = 1)`,
		wantOnePerJob},
	{"jobs with exactly one event \"ended\"",
		`SELECT count(*) FROM (SELECT job FROM events WHERE kind = 'ended' AND state = 6 GROUP BY job HAVING count(*) = 1)`,
		wantOnePerJob},
	{"missing numbers between events", `SELECT max(seq) - min(seq) + 1 - count(*) FROM events`, wantZero},
}

// countOutputsSQL is the SQL statement that counts the attempts whose stored output contains a text.
const countOutputsSQL = `SELECT count(*) FROM attempts WHERE instr(output, CAST(? AS BLOB)) > 0`

func wantOnePerJob(jobCount int) int { return jobCount }
func wantZero(int) int               { return 0 }

// checkJobsAndRemoveService checks that a service shows the given number of completed jobs correctly. Then it stops the
// service, checks the database and removes the directory of the service.
func (b *bench) checkJobsAndRemoveService(s *service, jobCount int, wantOutput string) error {
	shown := s.checkOneAttemptPerJob(jobCount)
	if err := errors.Join(shown, s.stop()); err != nil {
		return err
	}
	return b.checkDatabaseAndRemove(s, jobCount, wantOutput)
}

// checkOneAttemptPerJob checks that the service shows one successful attempt for each job. It asks the service instead
// of the database, because the database has no row for an attempt without output.
func (s *service) checkOneAttemptPerJob(jobCount int) error {
	for seq := 1; seq <= jobCount; seq++ {
		j, err := s.ShowJob(s.ctx, control.JobShowParams{ID: control.JobID(strconv.Itoa(seq))})
		if err != nil {
			return fmt.Errorf("cannot check job %d: %w", seq, err)
		}
		if len(j.History) != 1 {
			return fmt.Errorf("check: job %d has %d attempts, want 1", seq, len(j.History))
		}
		if a := j.History[0]; a.Attempt != 1 || a.ExitCode == nil || *a.ExitCode != 0 || a.StartedAt == 0 ||
			a.FinishedAt < a.StartedAt {
			return fmt.Errorf("check: job %d has the attempt %+v, want an attempt with exit code 0 that has started and ended",
				seq, a)
		}
	}
	return nil
}

// checkDatabaseAndRemove checks the database of a stopped service, and then removes the directory of the
// service.
func (b *bench) checkDatabaseAndRemove(s *service, jobCount int, wantOutput string) error {
	db, err := openDB(filepath.Join(s.dir, "queuectl.db"), "&mode=ro")
	if err != nil {
		return err
	}
	defer db.Close()
	var mismatches []error
	for _, f := range expectedDatabaseCounts {
		var got int
		if err := db.QueryRow(f.sql).Scan(&got); err != nil {
			return fmt.Errorf("cannot count the %s: %w", f.counted, err)
		}
		if want := f.want(jobCount); got != want {
			mismatches = append(mismatches, fmt.Errorf("check: %d %s, want %d", got, f.counted, want))
		}
	}
	if wantOutput != "" {
		var got int
		if err := db.QueryRow(countOutputsSQL, wantOutput).Scan(&got); err != nil || got != jobCount {
			mismatches = append(mismatches, fmt.Errorf("check: %d attempts with their output, want %d (%v)", got, jobCount, err))
		}
	}
	var verdict string
	if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		mismatches = append(mismatches, fmt.Errorf("integrity_check: %s (%v)", verdict, err))
	}
	if len(mismatches) > 0 {
		return errors.Join(mismatches...)
	}
	return os.RemoveAll(s.dir)
}

// openDB opens a database with a single connection.
func openDB(path, options string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)"+options)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}
