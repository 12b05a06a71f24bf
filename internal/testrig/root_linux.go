package testrig

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/queuectl/queuectl/internal/skip"
)

// These accounts exist on every Debian system. The package base-passwd creates them.
var (
	ServiceAccount = Person{Name: "games", Uid: 5, Gid: 60} // account under which the service runs
	DaemonUser     = Person{Name: "daemon", Uid: 1, Gid: 1}
	NewsUser       = Person{Name: "news", Uid: 9, Gid: 9}
	UucpUser       = Person{Name: "uucp", Uid: 10, Gid: 10}
)

// StartQueueWithRootRunners starts a service under an ordinary account, and a launcher as root. The launcher starts the
// runners of the service. policy is the content of the policy file, which lists the accounts that jobs may use.
// StartQueueWithRootRunners skips the test unless the test runs as root.
func StartQueueWithRootRunners(t *testing.T, settings, launcherPolicy string) *Harness {
	t.Helper()
	q, rules := PrepareQueueWithRootRunners(t, settings, launcherPolicy)
	q.StartLauncher(rules)
	socket := filepath.Join(q.RootRunnerDir, "spawn.sock")
	q.StartService("--workers", "2", "--runner-dir", q.RootRunnerDir, "--runner-socket", socket, "--runner-policy", rules)
	return q
}

// PrepareQueueWithRootRunners creates the settings, the socket and the policy file for StartQueueWithRootRunners, but
// starts nothing. It also returns the path of the policy file.
func PrepareQueueWithRootRunners(t *testing.T, settings, launcherPolicy string) (q *Harness, policyPath string) {
	t.Helper()
	skip.UnlessRoot(t, "needs root's runners; .ci/run runs it as root")
	t.Parallel()
	q = NewHarness(t, "")
	base, err := os.MkdirTemp("", "qr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		q.EndServiceAndRunners()
		os.RemoveAll(base)
	})
	q.ClientPath = InstallPrograms(t, BuiltProgram(t, ""), base)
	q.RootRunnerDir = filepath.Join(base, "runners")
	q.ServiceCredential = &syscall.Credential{Uid: uint32(ServiceAccount.Uid), Gid: uint32(ServiceAccount.Gid)}
	q.WriteFile("queuectl.toml", settings+"[access]\nsubmit = [\"daemon\", \"news\", \"uucp\"]\n")
	for path, mode := range map[string]os.FileMode{base: 0o755, q.StateDir: 0o711, q.Path("queuectl.toml"): 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(q.StateDir, ServiceAccount.Uid, ServiceAccount.Gid); err != nil {
		t.Fatal(err)
	}
	// Create the socket as root, because clients trust a socket that root owns.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: q.Path(SocketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if q.controlSocket, err = l.File(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.controlSocket.Close() })
	if err := os.Chmod(q.Path(SocketName), 0o666); err != nil {
		t.Fatal(err)
	}
	policyPath = filepath.Join(base, "runner.conf")
	if err := os.WriteFile(policyPath, []byte(launcherPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	return q, policyPath
}

// StartLauncher starts the launcher: the process with root privileges that starts runners. It does this in the same way
// as a service that root has started. The launcher ends with the test.
func (q *Harness) StartLauncher(policyPath string) *exec.Cmd {
	q.Helper()
	ready, out, err := os.Pipe()
	if err != nil {
		q.Fatal(err)
	}
	defer ready.Close()
	cmd := exec.Command(q.ClientPath, "runner", "--dir", q.RootRunnerDir, "--policy", policyPath, "--launcher",
		fmt.Sprintf("%d:%d", ServiceAccount.Uid, ServiceAccount.Gid))
	life, err := cmd.StdinPipe()
	if err != nil {
		q.Fatal(err)
	}
	cmd.ExtraFiles, cmd.Stderr = []*os.File{out}, os.Stderr
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	out.Close()
	q.Cleanup(func() {
		life.Close()
		if err := cmd.Wait(); err != nil && !wasKilledByFailpoint(err) {
			q.Errorf("the launcher ended with %v", err)
		}
	})
	if line, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		q.Fatalf("the launcher printed %q: %v", line, err)
	}
	return cmd
}

// RunJobAs enqueues a job as the given person, waits until the job ends, and returns the job's output and error.
func (q *Harness) RunJobAs(person Person, args ...string) string {
	q.Helper()
	id := q.MustRunAs(person, append([]string{"enqueue", "--max-retries", "0"}, args...)...)
	q.RunAs(person, "wait", id)
	j := q.ShowJob(id)
	return strings.TrimSpace(j.Output + j.Stderr + j.Error)
}
