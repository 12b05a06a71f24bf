package windows

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// explorerModeEnvVar is the environment variable that makes this test binary behave like Explorer, which starts
// programs at logon and on a double click. The value is the path of the program to start.
const explorerModeEnvVar = "QUEUECTL_TEST_EXPLORER"

// runAsExplorer runs the program that explorerModeEnvVar names, as Explorer does. It returns the exit code.
func runAsExplorer() (code int) {
	cmd := exec.Command(os.Getenv(explorerModeEnvVar), os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := testrig.StartCommand(cmd); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// A program behaves the same whether Explorer or a command prompt starts it. If Explorer starts it
// at logon, the program starts the user's service.
func TestStartedByExplorer(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	explorer := filepath.Join(t.TempDir(), "explorer.exe")
	if err := os.WriteFile(explorer, raw, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{q.ClientPath, filepath.Join(filepath.Dir(q.ClientPath), "queuectld.exe")} {
		cmd := exec.Command(explorer, "version")
		cmd.Env = append(testrig.UserEnvironment(q.StateDir), explorerModeEnvVar+"="+program)
		if got := testrig.RunCommand(t, cmd); got.ExitCode != 0 || !strings.HasPrefix(got.Stdout, "queuectl ") {
			t.Errorf("%s: %+v", program, got)
		}
	}
}
