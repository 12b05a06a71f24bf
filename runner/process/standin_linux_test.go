package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that has the pipe of its output locked ends no later for that: by its timeout, or when the grace for what is left behind is
// over. Whoever reads the pipe waits with it, which most of these do.
func TestLockedPipesKeepNothing(t *testing.T) {
	adopt(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			c := command(t, self)
			c.Timeout, c.KillAfter = 300*time.Millisecond, 0
			behind := i%2 == 1
			if behind {
				c.Argv = []string{"/bin/sh", "-c", `"$0" & sleep 0.2`, self}
				c.Timeout = 20 * time.Second
			}
			c.Env = append(c.Env, rolesVariable+"=lock ")
			began := time.Now()
			r := NewWorker(nil).Run(c)
			if r.TimedOut == behind || r.Error != "" || time.Since(began) > 10*time.Second {
				t.Errorf("left behind: %v: %+v after %v", behind, r, time.Since(began))
			}
		})
	}
	all.Wait()
}

// What an orphan has printed is read also where the control group has ended and the orphan is not reaped yet.
func TestHeldOrphanMayHavePrinted(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	events := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(events, []byte("populated 0\nfrozen 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(events, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	c := exec.Command("/bin/sh", "-c", "cat <&3 3<&- & exit 0")
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.ExtraFiles = []*os.File{from}
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	r := &run{w: &Worker{cgroup: &cgroup{events: fd}}, c: &Command{}, r: &Result{}, empty: true, reaped: orphans.reaped.Load()}
	if alone := r.alone(); !alone || r.empty && r.reaped == orphans.reaped.Load() {
		t.Errorf("alone: %v, and the pipes are not looked into again", alone)
	}
	from.Close()
	to.Close()
	for !noOrphans() {
		reapOrphans()
		time.Sleep(time.Millisecond)
	}
}
