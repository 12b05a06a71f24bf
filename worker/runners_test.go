package worker

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// A runner that does not answer gets no new jobs. When the runner answers again, it gets new jobs if
// canTakeNewJobs accepts it and no other runner gets new jobs.
func TestUnresponsiveRunnerGetsNoNewJobs(t *testing.T) {
	const version = "1"
	root := t.TempDir()
	cfg := Config{ServiceVersion: version, Log: slog.New(slog.DiscardHandler),
		RunnerLocation: runner.RunnersLocation{RunnersDir: root}}
	connect := func(name, version string, state connState) *runnerConn {
		return newRunnerConn(&runner.Client{
			RunnerDir: filepath.Join(root, name), HelloReply: wire.HelloReply{RunnerVersion: version},
		}, state)
	}
	for _, c := range []struct {
		name          string
		runnerVersion string
		replaced      bool // another runner is made current while this one does not answer
		spawning      bool // another runner is starting when this one answers again
		want          connState
	}{
		{"no other runner", version, false, false, connCurrent},
		{"another runner is starting", version, false, true, connRestricted},
		{"another runner gets new jobs", version, true, false, connRestricted},
		{"another version", "2", false, false, connRestricted},
	} {
		r := runners{cfg: &cfg, connectedSignal: make(chan struct{})}
		conn := connect("first", c.runnerVersion, connCurrent)
		r.addConnLocked(conn)
		r.markUnresponsiveLocked(conn)
		if conn.state != connUnresponsive || r.currentRunnerLocked() != nil {
			t.Errorf("%s: the state is %d and the current runner is %v; want %d and no current runner",
				c.name, conn.state, r.currentRunnerLocked(), connUnresponsive)
		}
		if c.replaced {
			r.addConnLocked(connect("second", version, connCurrent))
			if conn.state != connUnresponsive {
				t.Errorf("%s: another runner changed the state to %d", c.name, conn.state)
			}
		}
		r.isSpawningCurrentRunner = c.spawning
		if !r.markAliveLocked(conn) || conn.state != c.want {
			t.Errorf("%s: the state is %d after an answer, want %d", c.name, conn.state, c.want)
		}
		next := connect("next", version, connCurrent)
		if r.addConnLocked(next); conn.state != connRestricted || r.currentRunnerLocked() != next {
			t.Errorf("%s: the state is %d after another runner was made current, want %d", c.name, conn.state, connRestricted)
		}
	}
}
