package process

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Of what is being started only that is ended which hangs itself: what is stopped, or
// has become nothing for too long, by its own time.
func TestOnlyWhatHangsIsEnded(t *testing.T) {
	if os.Getenv("TEST_FLEDGLING") != "" {
		os.Stdin.Read(make([]byte, 1)) // until its parent ends
		return
	}
	child := func() (*exec.Cmd, chan error) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Args, cmd.Env = os.Args, append(os.Environ(), "TEST_FLEDGLING=1") // the words of this process
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { cmd.Process.Kill() })
		return cmd, ended
	}
	s, err := StartingOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const within = 10 * time.Second
	old, oldEnded := child()
	young, youngEnded := child()
	reused, reusedEnded := child()
	s.EndHung(within)
	for pid, c := range s.seen {
		switch pid {
		case old.Process.Pid:
			c.since = c.since.Add(-within)
		case reused.Process.Pid: // what had this number is long gone
			c.since, c.ticks = c.since.Add(-within), c.ticks-1
		}
		s.seen[pid] = c
	}
	if len(s.seen) != 3 {
		t.Fatalf("seen %v, want three", s.seen)
	}
	s.EndHung(within)
	<-oldEnded
	select {
	case err := <-youngEnded:
		t.Errorf("what was just started has ended: %v", err)
	case err := <-reusedEnded:
		t.Errorf("what has the number of another has ended: %v", err)
	default:
	}
	young.Process.Signal(syscall.SIGSTOP)
	for deadline := time.Now().Add(20 * time.Second); ; {
		s.EndHung(within)
		select {
		case <-youngEnded:
			return
		default:
			if time.Now().After(deadline) {
				t.Fatal("what is stopped lives")
			}
		}
	}
}
