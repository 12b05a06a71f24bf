package worker

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// A job on Windows gets the search path and the variables of the machine and the account. It gets
// nothing else from the service's environment. The job's own variables take precedence, in any spelling
// of their names.
func TestWindowsJobGetsOnlyMachineAndAccountVariables(t *testing.T) {
	t.Setenv("SECRET", "x")
	t.Setenv("TEMP", `C:\elsewhere`)
	t.Setenv("Path", `C:\elsewhere`)
	account := Account{UserName: `NT SERVICE\queuectl`, HomeDir: `C:\Windows\ServiceProfiles\queuectl`}
	p := &Pool{cfg: Config{Account: account, SocketPath: `\\.\pipe\queuectl`,
		AttemptTraceparent: func(*queue.Job) string { return "" }}}
	env := p.jobEnvironment(&queue.Job{
		ID: "a", Queue: "default", ExecutionSettings: queue.ExecutionSettings{Env: []string{"pathext=.EXE", "x=y"}},
	})
	for _, want := range []string{
		"SystemRoot=" + os.Getenv("SystemRoot"), "ComSpec=" + os.Getenv("ComSpec"),
		"USERNAME=queuectl", "USERDOMAIN=NT SERVICE",
		`USERPROFILE=C:\Windows\ServiceProfiles\queuectl`, "HOMEDRIVE=C:", `HOMEPATH=\Windows\ServiceProfiles\queuectl`,
		"pathext=.EXE", "x=y", "QUEUECTL_JOB_ID=a", `QUEUECTL_SOCKET=\\.\pipe\queuectl`,
	} {
		if !slices.Contains(env, want) {
			t.Errorf("the environment lacks %s:\n%s", want, strings.Join(env, "\n"))
		}
	}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		switch strings.ToUpper(name) {
		case "LANG", "HOME", "SHELL", "LOGNAME", "USER", "SECRET", "PATHEXT":
			if e != "pathext=.EXE" {
				t.Errorf("the environment contains %s", e)
			}
		case "PATH":
			if list := strings.Split(value, ";"); len(list) != 4 || !strings.EqualFold(list[1], os.Getenv("SystemRoot")) {
				t.Errorf("the environment contains %s", e)
			}
		case "TEMP", "TMP", "APPDATA", "LOCALAPPDATA":
			if info, err := os.Stat(value); err != nil || !info.IsDir() || strings.Contains(value, "elsewhere") {
				t.Errorf("the environment contains %s: %v", e, err)
			}
		}
	}
}
