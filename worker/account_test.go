package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// accounts creates the directory for runners of an account, and a runner there that the store
// knows.
func accounts(t *testing.T, s *hub, root string) *fakeRunner {
	t.Helper()
	folder := filepath.Join(root, "as-x")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	f := newRunner(t, folder, "theirs")
	if err := s.NoteRunners(t.Context(), []string{f.dir}); err != nil {
		t.Fatal(err)
	}
	return f
}

// Reports of an account's runner neither end the pool nor occupy workers of the runner for new
// jobs. The runner may refuse the connection or report processes that survive SIGKILL.
func TestAnAccountsRunnerHoldsNobodyUp(t *testing.T) {
	for name, lies := range map[string]func(f *fakeRunner){
		"it refuses":            func(f *fakeRunner) { f.refuses = true },
		"it is full of corpses": func(f *fakeRunner) { f.then = []wire.Frame{&wire.Stuck{Attempts: make([]wire.Attempt, 100)}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, root := newStore(t), t.TempDir()
			liar := accounts(t, s, root)
			liar.mu.Lock()
			lies(liar)
			liar.mu.Unlock()
			f := newRunner(t, root, "first")
			p := run(t, s, root, 1)
			until(t, "the liar is met", func() bool { liar.mu.Lock(); defer liar.mu.Unlock(); return len(liar.epochs) > 0 })
			f.settled()
			s.put(0)
			start, _ := hears[*wire.Start](t, f, 1)
			f.say(ran(start.Lease, long))
			s.becomes(1, queue.Completed)
			check(t, "workers", len(p.List(t.Context())), 1)
		})
	}
}

// A runner directory that an account has created and that the store does not know is ignored: it
// cannot hold jobs of this queue.
func TestFoldersThatAnAccountMakesAreLeftAlone(t *testing.T) {
	s, root := newStore(t), t.TempDir()
	accounts(t, s, root)
	planted := newRunner(t, filepath.Join(root, "as-x"), "planted")
	s.put(0)
	if _, err := s.Exchange(t.Context(), store.Report{Want: 1}); err != nil {
		t.Fatal(err)
	}
	planted.known.Attempts = []wire.Attempt{running(lease(1))}
	dead := filepath.Join(root, "as-x", named(root, "dead"))
	if err := os.Mkdir(dead, 0o700); err != nil { // without a boot id, which would count as damage
		t.Fatal(err)
	}
	f := newRunner(t, root, "first")
	run(t, s, root, 1)
	start, _ := hears[*wire.Start](t, f, 1) // the lease was returned, because no runner can have started it
	if start.Lease == lease(1) {
		t.Error("the lease was kept")
	}
	planted.mu.Lock()
	check(t, "met", planted.epochs, []int64(nil))
	planted.mu.Unlock()
	f.say(ran(start.Lease, long))
	s.becomes(1, queue.Completed)
	check(t, "attempts", s.job(1).Runs, 1)
}
