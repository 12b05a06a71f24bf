package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver
)

// facts is the table of what must hold after a drain of n jobs whose service has
// been stopped. Each statement counts.
var facts = []struct {
	what string
	sql  string
	want func(n int) int
}{
	{"jobs", `SELECT count(*) FROM jobs`, all},
	{"completed jobs", `SELECT count(*) FROM jobs WHERE state = 6 AND exit_code = 0 AND attempts = 1`, all},
	{"completed jobs by the counter", `SELECT completed FROM meta`, all},
	{"jobs by the counters", `SELECT blocked + held + pending + failed + processing + completed + dead + cancelled FROM meta`, all},
	{"leases", `SELECT count(*) FROM jobs, meta WHERE place <> 0 OR reserved <> ''`, none},
	{"attempts", `SELECT count(*) FROM attempts WHERE n = 1 AND exit_code = 0 AND started_at > 0 AND ended_at >= started_at`, all},
	{"attempts in all", `SELECT count(*) FROM attempts`, all},
	{"jobs with one event of their enqueueing", `SELECT count(*) FROM (SELECT job FROM events WHERE kind = 'enqueued' GROUP BY job HAVING count(*) = 1)`, all},
	{"jobs with one event of their end", `SELECT count(*) FROM (SELECT job FROM events WHERE kind = 'ended' AND state = 6 GROUP BY job HAVING count(*) = 1)`, all},
	{"gaps between events", `SELECT max(seq) - min(seq) + 1 - count(*) FROM events`, none},
}

// printedFact counts the attempts whose output was kept.
const printedFact = `SELECT count(*) FROM attempts WHERE instr(output, CAST(? AS BLOB)) > 0`

func all(n int) int { return n }
func none(int) int  { return 0 }

// check looks into the database of a stopped service, which it then removes.
func (b *bench) check(s *service, n int, output string) error {
	db, err := openDB(filepath.Join(s.dir, "queuectl.db"), "&mode=ro")
	if err != nil {
		return err
	}
	defer db.Close()
	var wrong []error
	for _, f := range facts {
		var got int
		if err := db.QueryRow(f.sql).Scan(&got); err != nil {
			return fmt.Errorf("check %s: %w", f.what, err)
		}
		if want := f.want(n); got != want {
			wrong = append(wrong, fmt.Errorf("check: %d %s, want %d", got, f.what, want))
		}
	}
	if output != "" {
		var got int
		if err := db.QueryRow(printedFact, output).Scan(&got); err != nil || got != n {
			wrong = append(wrong, fmt.Errorf("check: %d attempts with their output, want %d (%v)", got, n, err))
		}
	}
	var verdict string
	if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		wrong = append(wrong, fmt.Errorf("integrity_check: %s (%v)", verdict, err))
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	return os.RemoveAll(s.dir)
}

// openDB opens a database with one connection.
func openDB(path, options string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)"+options)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}
