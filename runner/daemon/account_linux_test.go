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

// When the runner looks up a job's account, the user database (NSS) may not answer. Then the runner reports that the
// job could not start for now. Other jobs are not delayed.
func TestHungAccountLookupDelaysOnlyItsJob(t *testing.T) {
	dir := t.TempDir()
	j, err := rundir.OpenJournal(dir, 0o600, func(rundir.JournalSize) {})
	if err != nil {
		t.Fatal(err)
	}
	table, err := rundir.CreateRunningTable(dir, 0o600, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	silence := func(string, string) (string, error) { return "", errors.New("no answer") }
	silent := &accounts.Resolver{AlwaysQueryRemote: true, GetentFunc: silence}
	s := &server{
		dir: runnerDirectory{dirPath: dir}, runningTable: table, journal: j,
		serviceLink: serviceLink{runnerLastBusyAt: time.Now()},
		workers:     workerGroup{busyWorkerCount: 1},
		accounts:    &launcher.AccountAuthorizer{PolicyFile: filepath.Join(dir, "policy"), AccountResolver: silent},
	}
	start := &wire.StartAttempt{Lease: wire.Lease{Seq: 1, Fence: 2}, Argv: []string{"true"}, AccountUID: 4_000_000}
	a := &attempt{startFrame: start, phase: attemptStarting, outputLog: output.NewLog(1<<20, nil), tableSlot: 1}
	s.executeAttempt(nil, &workDir{Dir: privdir.New(filepath.Join(dir, "private"))}, a)
	f, _, err := wire.ParseFrame(a.encodedResultFrame)
	if r, ok := f.(*wire.Result); !ok || !r.ResourceShortage || r.EndCause != int64(queue.EndStartHung) {
		t.Errorf("the result frame is %+v, error %v; want a shortage of a hung start", f, err)
	}
}
