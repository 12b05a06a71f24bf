package access

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// When the service has started, the socket has the mode and group from the settings. A client without
// access to the socket exits with 5, says how to get access, and does not start a second service.
func TestSocketHasConfiguredModeAndGroup(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartSharedQueue(t, "socket_mode = \"0660\"\nsocket_group = \"61298\"\n"+
		strings.ReplaceAll(testrig.AllPersonsAccessSettings, "socket_mode = \"0666\"\n", ""), "--workers", "0")
	info, err := os.Lstat(q.Path(testrig.SocketName))
	if err != nil || info.Mode().Perm() != 0o660 || info.Sys().(*syscall.Stat_t).Gid != 61298 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	q.MustRunAs(testrig.Bob, "enqueue", "true")
	for _, p := range []testrig.Person{testrig.Alice, testrig.Outsider} {
		r := q.RunAs(p, "enqueue", "true")
		want := fmt.Sprintf("queuectl: %d cannot use the socket %s: only members of the group 61298 may use it; "+
			"join the group with: sudo usermod -aG 61298 %[1]d, then log in again\n", p.Uid, q.Path(testrig.SocketName))
		if r.ExitCode != 5 || r.Stdout != "" || r.Stderr != want {
			t.Errorf("%s: %+v\nwant %s", p.Name, r, want)
		}
	}
	for _, c := range []struct{ key, value string }{{"socket_mode", "0600"}, {"socket_group", "none"}} {
		r := q.RunCLI("config", "set", c.key, c.value)
		if now := q.GetSetting(c.key); r.ExitCode != 0 || !strings.Contains(r.Stderr, "until the service restarts") ||
			now.Value == c.value || now.Origin != "file" {
			t.Errorf("config set %s: %+v, the setting is now %+v", c.key, r, now)
		}
		q.MustRunCLI("config", "unset", c.key)
	}
	if d := q.RunDoctor(); strings.Contains(fmt.Sprint(d), testrig.SocketName+" can be accessed") {
		t.Errorf("doctor: %+v", d)
	}
	q.StopService()
	q.WriteFile("queuectl.toml", "workers = 0\n")
	q.StartService()
	if r := q.RunAs(testrig.Alice, "status"); r.ExitCode != 5 ||
		!strings.Contains(r.Stderr, "only the user root may use it") {
		t.Errorf("a client of another user, with a socket for the owner alone: %+v", r)
	}
	if err := os.Chmod(q.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := testrig.CommandAs(exec.Command(worldExecutableProgramCopy(t), "--dir", q.StateDir, "status"), testrig.Alice)
	cmd.Dir = "/"
	if r := testrig.RunCommand(t, cmd); r.ExitCode != 5 || !strings.Contains(r.Stderr,
		"this account has no access to the directory "+q.StateDir) {
		t.Errorf("a client that may not search the socket's directory: %+v", r)
	}
	q.StopService()
	q.WriteFile("queuectl.toml", "socket_group = \"no.such.group\"\n")
	if r := q.RunServiceExpectingRefusal("--dir", q.StateDir); r.ExitCode != 78 ||
		!strings.Contains(r.Stderr, `socket_group: there is no group "no.such.group"`) {
		t.Errorf("start with an unknown group: %+v", r)
	}
}
