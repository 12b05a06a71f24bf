package cli

import (
	"strings"
	"syscall"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A job runs with the umask of the caller who enqueued it, or with the umask that the caller specifies.
func TestJobRunsWithCallersUmask(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	old := syscall.Umask(0o027)
	masked := strings.TrimSpace(q.MustRunCLI("enqueue", "umask"))
	syscall.Umask(old)
	for id, want := range map[string]string{masked: "0027\n",
		q.MustRunCLI("enqueue", "--umask", "077", "umask"): "0077\n"} {
		if got := w.WaitJobEnded(id).Output; got != want {
			t.Errorf("the umask of the job is %q, want %q", got, want)
		}
	}
}
