package daemon

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/privdir"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// If the user database (NSS) does not answer for a job's account, the runner reports a shortage, so
// that only this job is delayed.
func TestUnansweredLookupDelaysOnlyItsJob(t *testing.T) {
	dir := t.TempDir()
	j, err := rundir.OpenJournal(dir, 0o600, func(rundir.JournalSize) {})
	if err != nil {
		t.Fatal(err)
	}
	table, err := rundir.MakeTable(dir, 0o600, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	silence := func(string, string) (string, error) { return "", errors.New("no answer") }
	silent := &accounts.Directory{AlwaysAsk: true, Lookup: silence}
	s := &server{
		dir: directory{path: dir}, table: table, journal: j, link: link{idleAt: time.Now()}, workers: workers{busy: 1},
		accounts: &launcher.Accounts{Policy: filepath.Join(dir, "policy"), Directory: silent},
	}
	start := &wire.Start{Lease: wire.Lease{Seq: 1, Fence: 2}, Argv: []string{"true"}, UID: 4_000_000}
	a := &attempt{start: start, phase: attemptStarting, log: output.New(1<<20, nil), slot: 1}
	s.execute(nil, &workDir{Dir: privdir.New(filepath.Join(dir, "private"))}, a)
	f, _, err := wire.Parse(a.result)
	if r, ok := f.(*wire.Result); !ok || !r.Shortage || r.Cause != int64(queue.HungStart) {
		t.Errorf("the result frame is %+v, error %v; want a shortage of a hung start", f, err)
	}
}
