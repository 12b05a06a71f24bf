//go:build linux || windows

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// runProgram runs a program with additional variables in its environment.
func runProgram(t *testing.T, env []string, program string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Dir = append(os.Environ(), env...), t.TempDir()
	r := testrig.RunCommand(t, cmd)
	return r.Stdout + r.Stderr, r.ExitCode
}

// queuectl finds queuectld in its own directory or in the directory that packages use, never through PATH. If one of
// the two programs is missing, the error of the other program names the missing one.
func TestProgramsFindEachOther(t *testing.T) {
	t.Parallel()
	copyInto := func(parts ...string) string {
		dir := filepath.Join(append([]string{t.TempDir()}, parts...)...)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	both := testrig.InstallPrograms(t, testrig.BuiltProgram(t, ""), copyInto("both"))
	path := []string{"PATH=" + filepath.Dir(both) + string(filepath.ListSeparator) + os.Getenv("PATH")}

	for _, words := range [][]string{{"doctor", "--help"}, {"help", "serve"}, {"service", "--help"},
		{"__complete", "serve", "--"}} {
		if out, code := runProgram(t, nil, both, words...); code != 0 || !strings.Contains(out, "--") {
			t.Errorf("%q: exit code %d\n%s", words, code, out)
		}
	}

	singleDir := copyInto("alone")
	testrig.CopyProgram(t, both, filepath.Join(singleDir, testrig.ProgramFileNames[0]))
	client := filepath.Join(singleDir, testrig.ProgramFileNames[0])
	if out, code := runProgram(t, path, client, "version"); code != 0 {
		t.Errorf("version: exit code %d\n%s", code, out)
	}
	for _, words := range [][]string{{"serve"}, {"--dir", "x", "doctor"}, {"config", "validate"}, {"man", "."}} {
		if out, code := runProgram(t, path, client, words...); code != 1 ||
			!strings.Contains(out, "queuectl: program "+testrig.ProgramFileNames[1]+" not found in ") ||
			!strings.Contains(out, "make build") {
			t.Errorf("%q without queuectld: exit code %d\n%s", words, code, out)
		}
	}
	if out, code := runProgram(t, path, client, "run", "--private", "--lines", "-"); code != 125 ||
		!strings.Contains(out, "not found in ") {
		t.Errorf("run --private without queuectld: exit code %d\n%s", code, out)
	}

	duplicateDir := copyInto("twice")
	for _, name := range testrig.ProgramFileNames {
		testrig.CopyProgram(t, both, filepath.Join(duplicateDir, name))
	}
	for _, name := range testrig.ProgramFileNames {
		if out, code := runProgram(t, nil, filepath.Join(duplicateDir, name), "--dir", "q", "serve"); code != 1 ||
			!strings.Contains(out, "is queuectl, not queuectld") {
			t.Errorf("%s in a directory where both programs are queuectl: exit code %d\n%s", name, code, out)
		}
	}

	lone := filepath.Join(copyInto("lone"), testrig.ProgramFileNames[1])
	testrig.CopyProgram(t, filepath.Join(filepath.Dir(both), testrig.ProgramFileNames[1]), lone)
	if out, code := runProgram(t, path, lone, "--dir", "q", "serve"); code == 0 ||
		!strings.Contains(out, "program "+testrig.ProgramFileNames[0]+" not found in ") {
		t.Errorf("serve without queuectl: exit code %d\n%s", code, out)
	}

	prefix := copyInto("usr")
	for name, dir := range map[string]string{testrig.ProgramFileNames[0]: "bin",
		testrig.ProgramFileNames[1]: "libexec/queuectl"} {
		to := filepath.Join(prefix, dir)
		if err := os.MkdirAll(to, 0o755); err != nil {
			t.Fatal(err)
		}
		testrig.CopyProgram(t, filepath.Join(filepath.Dir(both), name), filepath.Join(to, name))
	}
	q := testrig.NewHarness(t, "")
	q.ClientPath = filepath.Join(prefix, "bin", testrig.ProgramFileNames[0])
	q.StartService("--workers", "1")
	if got := q.MustRunCLI("run", "--", testrig.ToolPath("echo"), "one"); strings.TrimSpace(got) != "one" {
		t.Errorf("a job printed %q", got)
	}
}

// Both programs list the same commands with the same descriptions.
func TestProgramsListTheSameCommands(t *testing.T) {
	t.Parallel()
	client := testrig.BuiltProgram(t, "")
	daemon := filepath.Join(filepath.Dir(client), testrig.ProgramFileNames[1])
	help, _ := runProgram(t, nil, client, "--help")
	if got, _ := runProgram(t, nil, daemon, "--help"); got != help {
		t.Errorf("help of queuectld: %s\nhelp of queuectl: %s", got, help)
	}
}

// After an incomplete upgrade, queuectl and queuectld have different versions, and `queuectl doctor` reports
// that.
func TestDoctorFindsIncompleteUpgrade(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	q.CheckDoctorHealthy("both of one version")
	daemon := filepath.Join(filepath.Dir(q.ClientPath), testrig.ProgramFileNames[1])
	out, code := runProgram(t, []string{"QUEUECTL_CLIENT_VERSION=0.0.1"}, daemon, "--dir", q.StateDir, "doctor")
	if code != 1 || !strings.Contains(out, "queuectl has version 0.0.1, but queuectld ") {
		t.Errorf("doctor with different versions: exit code %d\n%s", code, out)
	}
}
