package launcher

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner"
)

// A service can end only runners whose directories are in the directory of root's runners. A name
// that leads to another directory is rejected.
func TestKillRequestRejectsOtherDirectories(t *testing.T) {
	base := filepath.Join(t.TempDir(), "runner")
	for _, dir := range []string{"1.a", "as-mail/1.a", "output", "other/1.a"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"1.a", "as-mail/1.a", "as-mail/../1.a"} {
		// No process is running in these directories. So for a valid name, killNamedRunner must return the error about
		// the missing pid.
		if err := killNamedRunner(base, name); err == nil || !strings.Contains(err.Error(), "the pid in its files") {
			t.Errorf("%q: got %v, want the name accepted", name, err)
		}
	}
	for _, name := range []string{
		"", ".", "..", "/", "../runner/1.a", "/1.a", ".hidden", "as-mail", "output", "jobs", "program",
		"other/1.a", "as-mail/output", "as-mail/.x", "as-mail/x/1.a", "as-mail/as-mail/1.a",
	} {
		if err := killNamedRunner(base, name); err == nil || !strings.Contains(err.Error(), "is not a runner name") {
			t.Errorf("%q: got %v, want the name rejected", name, err)
		}
	}
}

// A refused request creates neither the directory of the runners nor control groups for jobs.
func TestRefusedSpawnRequestChangesNothing(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	service, ours := os.NewFile(uintptr(fds[0]), "service"), os.NewFile(uintptr(fds[1]), "launcher")
	defer service.Close()
	defer ours.Close()
	if _, err := fmt.Fprintln(service, runner.SpawnRequest{SwitchToAccount: "mail"}); err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	g := &AcceptedSpawnRequest{ServiceConn: conn,
		RunnerSettings: RunnerSettings{RunnersDir: filepath.Join(t.TempDir(), "runner")}}
	if err := g.handleRequest(true); err == nil || !strings.Contains(err.Error(), "can run jobs only as uid") {
		t.Errorf("got %v, want an error about the uid", err)
	}
	if g.Cgroups != nil || g.NoCgroupsReason != nil {
		t.Errorf("control groups were created or tried: %v, %v", g.Cgroups, g.NoCgroupsReason)
	}
	if _, err := os.Stat(g.RunnersDir); !os.IsNotExist(err) {
		t.Errorf("the directory of the runners: got %v, want that it does not exist", err)
	}
}

// A request is one line of limited length.
func TestSpawnRequestSizeIsBounded(t *testing.T) {
	line := runner.SpawnRequest{JobTmpdir: "/" + strings.Repeat("x", maxSpawnRequestBytes)}.String()
	for _, c := range []struct {
		name, sent string
		accepted   bool
	}{
		{"at the limit", line[:maxSpawnRequestBytes-1] + "\n", true},
		{"one byte longer", line[:maxSpawnRequestBytes] + "\n", false},
		{"without its end", line[:100], false},
	} {
		if got, err := readSpawnRequest(strings.NewReader(c.sent)); (err == nil) != c.accepted {
			t.Errorf("%s: got a job_tmpdir of %d bytes, %v", c.name, len(got.JobTmpdir), err)
		}
	}
}
