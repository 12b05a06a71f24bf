package postgres

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/test/pgserver"
)

// startSlowProxy returns the URL of a proxy to the server. The proxy delays each reply by *delayNanos
// nanoseconds.
func startSlowProxy(t *testing.T, url, socket string) (proxyURL string, delayNanos *atomic.Int64) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, filepath.Base(socket)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	delayNanos = new(atomic.Int64)
	go func() { // this goroutine ends when the listener is closed
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", socket)
			if err != nil {
				t.Error(err)
				client.Close()
				return
			}
			go func() {
				defer server.Close()
				io.Copy(server, client)
			}()
			go func() {
				defer client.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := server.Read(buf)
					time.Sleep(time.Duration(delayNanos.Load()))
					if _, werr := client.Write(buf[:n]); err != nil || werr != nil {
						return
					}
				}
			}()
		}
	}()
	return strings.Replace(url, filepath.Dir(socket), dir, 1), delayNanos
}

// A job keeps the start time that its runner has reported, even if the server replies slowly. A slow reply
// does not count as a difference between the clocks.
func TestSlowRepliesDoNotShiftTimes(t *testing.T) {
	p := pgserver.SharedServer(t)
	url, slow := startSlowProxy(t, p.CreateDatabase(t), p.SocketPath())
	a := openNodeWithGPU(t, url, "a")
	enqueueOnNode(t, a, newDraft())
	slow.Store(int64(200 * time.Millisecond))
	job := claimOnNode(t, a, 1)[0]
	at := queue.UnixMillisOf(time.Now())
	if _, err := a.ReportAndClaim(t.Context(), store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: job.Lease(),
		StartedAt: at, WorkerID: "1/1",
		PID: 1}}}); err != nil {
		t.Fatal(err)
	}
	slow.Store(0)
	if j, err := a.GetJob(t.Context(), job.ID); err != nil || j.StartedAt != at {
		t.Errorf("started at %v, %v; the runner said %v", j.StartedAt, err, at)
	}
}

// The time of a reading of the server's clock is only known to lie between the request and the reply. So a
// reading changes the offset no more than necessary.
func TestClockOffsetIsCorrectedByReadings(t *testing.T) {
	type reading struct{ sent, server, received queue.UnixMillis }
	for name, row := range map[string]struct {
		readings []reading
		want     int64
	}{
		"equal clocks":                         {[]reading{{1000, 1001, 1002}}, 0},
		"a slow reply":                         {[]reading{{1000, 1001, 3000}}, 0},
		"a slow request":                       {[]reading{{1000, 2999, 3000}}, 0},
		"behind the server":                    {[]reading{{1000, 61_001, 1002}}, 59_999},
		"before the server":                    {[]reading{{61_000, 1001, 61_002}}, -59_999},
		"better known with each reading":       {[]reading{{1000, 61_001, 1500}, {2000, 62_001, 2002}}, 59_999},
		"kept, where a reading allows it":      {[]reading{{1000, 61_001, 1002}, {2000, 62_001, 9000}}, 59_999},
		"set forward during the request":       {[]reading{{1000, 61_001, 1002}, {62_002, 62_003, 62_004}}, 1},
		"set back between request and reply":   {[]reading{{5000, 5001, 1000}, {1001, 5002, 1003}}, 3999},
		"the server's clock was set back then": {[]reading{{1000, 61_001, 1002}, {2000, 2001, 2002}}, 1},
	} {
		var o serverClockOffsetMillis
		for _, r := range row.readings {
			o.update(r.sent, r.server, r.received)
		}
		if got := o.Load(); got != row.want {
			t.Errorf("%s: %d ms, want %d", name, got, row.want)
		}
	}
}
