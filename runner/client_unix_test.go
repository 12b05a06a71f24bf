//go:build unix

package runner

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// startFakeRunner creates a runner's directory, in a directory with the name parentDirName, and listens on the runner's
// socket. A client that connects gets the frame reply.
func startFakeRunner(t *testing.T, parentDirName string, reply wire.Frame) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), parentDirName, "1.a")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := rundir.Listen(filepath.Join(dir, rundir.SocketFileName), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // this goroutine ends when the connection is closed
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Write(wire.AppendFrame(nil, reply))
		c.Read(make([]byte, 100))
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return dir
}

// A runner that is ending rejects every service. Connect returns ErrRunnerSawNewerDatabase only if the runner has
// already accepted a connection with the same epoch (the number of a service start) or a later one.
func TestEndingRunnerRejectsServices(t *testing.T) {
	for epoch, newer := range map[int64]bool{6: false, 7: true, 8: true} {
		_, err := Connect(startFakeRunner(t, "", &wire.HelloRefusal{NewestEpoch: epoch}), 7, "1")
		if err == nil || errors.Is(err, ErrRunnerSawNewerDatabase) != newer {
			t.Errorf("a runner of epoch %d refused epoch 7: %v", epoch, err)
		}
	}
}

// A runner may already be ending when EndAllRunners asks all runners to end. EndAllRunners then counts this runner and
// returns no error, even if the runner's files no longer contain its pid.
func TestEndAllRunnersCountsEndingRunner(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "1.a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, ok, err := rundir.TryLockFile(filepath.Join(dir, rundir.LockFileName), 0o600)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	time.AfterFunc(50*time.Millisecond, func() { lock.Close() })
	if n, err := (RunnersLocation{RunnersDir: base}).EndAllRunners(10 * time.Second); n != 1 || err != nil {
		t.Errorf("EndAllRunners ended %d runners, error %v; want 1", n, err)
	}
}
