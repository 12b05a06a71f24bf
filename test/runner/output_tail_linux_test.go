package runner

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// bytesReadByProcess returns the number of bytes that a process has read from files, pipes and sockets.
func bytesReadByProcess(t *testing.T, pid int) (readBytes int64) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(raw), "rchar: %d", &readBytes); err != nil {
		t.Fatal(err)
	}
	return readBytes
}

// A client can read the end of a running job's output. The service then reads little more than that end from
// the disk, even if the output is large and grows fast.
func TestReadingOutputTailReadsFewBytes(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	longJob := w.Enqueue(testrig.JSONFields{"command": "echo first >&2; yes | head -c 48M; echo last; sleep 600",
		"output_limit": "64MiB"})
	q.WaitUntil("the long output is there", 20*time.Second, func() bool {
		return strings.HasSuffix(w.ShowJob(longJob).Output, "last\n")
	})
	loud := w.Enqueue(testrig.JSONFields{"command": "exec yes", "output_limit": "64MiB"})
	q.WaitUntil("the loud job prints", 20*time.Second, func() bool { return w.ShowJob(loud).Output != "" })
	const maxRead = 2 << 20
	for _, c := range []struct {
		args string
		want string // expected output; "" matches any output
	}{
		{"show " + longJob, ""}, {"show " + loud, ""},
		{"logs -n 2 " + longJob, "y\nlast\n"}, {"logs -n 3 " + loud, "y\ny\ny\n"}, {"logs -n 0 " + loud, ""},
		{"logs -n 1 --stderr " + longJob, "first\n"}, {"logs -n 100000 " + longJob, strings.Repeat("y\n", 99_999) + "last\n"},
	} {
		before := bytesReadByProcess(t, q.ServiceCmd.Process.Pid)
		got := q.RunCLI(strings.Fields(c.args)...)
		if read := bytesReadByProcess(t, q.ServiceCmd.Process.Pid) - before; read > maxRead {
			t.Errorf("%s: the service read %d bytes, want at most %d", c.args, read, maxRead)
		}
		output := got.Stdout + got.Stderr
		if got.ExitCode != 0 || c.want != "" && output != c.want {
			t.Errorf("%s: exit code %d, %d bytes %.100q, want %d %.100q", c.args, got.ExitCode, len(output), output, len(c.want),
				c.want)
		}
	}
	q.MustRunCLI("cancel", longJob, loud)
}
