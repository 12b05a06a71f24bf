package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/test/pgserver"
)

// onServer is a queue in a database of a server of its own.
func onServer(t *testing.T) (*queue, *pgserver.Server) {
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	q := newQueue(t, "")
	q.store = p.URL("postgres")
	return q, p
}

// What holds where the service has its database holds on a server too.
func TestServiceKilledOnAServer(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	serviceKilled(t, 10, p.URL("postgres"))
}

// A database's server that is killed again and again, under a load, loses nothing that was acknowledged and has nothing
// run twice; the service waits for it, and says so to who asks meanwhile.
func TestDatabaseServerKilled(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.Remove)
	l := &killLoad{rig: newRig(t, ""), kills: map[string]int{}, failures: make(chan error, 8)}
	l.store = p.URL("postgres")
	l.start("--workers", "6")
	pid := l.cmd.Process.Pid
	for i := range 4 {
		l.clients.Go(func() { l.enqueueShort(string(rune('a' + i))) })
	}
	l.clients.Go(l.enqueueLong)
	for n := range 6 {
		time.Sleep(time.Duration(300+170*n) * time.Millisecond) // the instant of the kill
		p.Kill()
		p.Start(t)
	}
	l.stop.Store(true)
	l.clients.Wait()
	close(l.failures)
	for err := range l.failures {
		t.Error(err)
	}
	l.drained()
	l.settled()
	if l.cmd.Process.Pid != pid || l.gone(0) {
		t.Errorf("the service ended:\n%s", l.log)
	}
	l.nothingLeft()
	t.Logf("%d jobs, requests repeated %d, of them known %d", len(l.acked), l.repeats, l.known)
}

// While a database's server is away what runs goes on, whoever asks is told in time, and all goes on once it is back. No
// other service may use the database meanwhile.
func TestDatabaseServerAway(t *testing.T) {
	t.Parallel()
	q, p := onServer(t)
	q.start("--workers", "2")
	q.must("enqueue", "--id", "long", "while [ ! -e "+q.path("go")+" ]; do sleep 0.05; done; echo done")
	q.until("it runs", 20*time.Second, func() bool { return strings.Contains(q.must("list", "-s", "processing"), "long") })
	other := newQueue(t, "")
	other.store = q.store
	if err := other.tryStart(); err == nil || !strings.Contains(fmt.Sprint(err), "another service uses the database") {
		t.Errorf("a second service: %v", err)
	}
	p.Kill()
	began := time.Now()
	r := q.cli("enqueue", "--id", "late", "true")
	if r.code == 0 || !strings.Contains(r.err, "cannot be reached") || time.Since(began) > 10*time.Second {
		t.Errorf("without its server: %+v after %v", r, time.Since(began))
	}
	q.write("go", "")
	p.Start(t)
	q.must("wait", "--timeout", "20s", "long")
	q.must("run", "--", "true")
	if out := q.must("logs", "long"); out != "done" {
		t.Errorf("output %q", out)
	}
	if code := q.stop(); code != 0 {
		t.Errorf("stopped with %d:\n%s", code, q.log)
	}
}
