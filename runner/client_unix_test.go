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

// startFakeRunner creates the directory of a runner and its socket. parentDir is the name of the parent directory.
// A client that connects to the socket receives the given frame.
func startFakeRunner(t *testing.T, parentDir string, answer wire.Frame) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), parentDir, "1.a")
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
		c.Write(wire.Append(nil, answer))
		c.Read(make([]byte, 100))
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return dir
}

// A runner that is ending rejects every service. Connect returns ErrNewerDatabase only if the runner has
// already accepted an equal or later epoch.
func TestEndingRunnerRejectsServices(t *testing.T) {
	for epoch, newer := range map[int64]bool{6: false, 7: true, 8: true} {
		_, err := Connect(startFakeRunner(t, "", &wire.HelloRefusal{Epoch: epoch}), 7, "1")
		if err == nil || errors.Is(err, ErrNewerDatabase) != newer {
			t.Errorf("a runner of epoch %d refused epoch 7: %v", epoch, err)
		}
	}
}

// EndAllRunners counts a runner that ends by itself, and returns no error for it, even if its files no longer
// name a process.
func TestEndAllAcceptsEndingRunner(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "1.a")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, ok, err := rundir.Lock(filepath.Join(dir, rundir.LockFileName), 0o600)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	time.AfterFunc(50*time.Millisecond, func() { lock.Close() })
	if n, err := (Location{Dir: base}).EndAllRunners(10 * time.Second); n != 1 || err != nil {
		t.Errorf("EndAllRunners ended %d runners, error %v; want 1", n, err)
	}
}
