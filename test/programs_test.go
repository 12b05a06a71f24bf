//go:build linux || windows

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runProgram runs a program with additional variables in its environment.
func runProgram(t *testing.T, env []string, program string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Dir = append(os.Environ(), env...), t.TempDir()
	r := runCommand(t, cmd)
	return r.out + r.err, r.code
}

// queuectl finds queuectld in its own directory or where packages install it, never through PATH. Each of the
// two programs names the other if it is missing.
func TestProgramsFindEachOther(t *testing.T) {
	t.Parallel()
	copyInto := func(parts ...string) string {
		dir := filepath.Join(append([]string{t.TempDir()}, parts...)...)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	both := install(t, binary(t, ""), copyInto("both"))
	path := []string{"PATH=" + filepath.Dir(both) + string(filepath.ListSeparator) + os.Getenv("PATH")}

	for _, words := range [][]string{{"doctor", "--help"}, {"help", "serve"}, {"service", "--help"},
		{"__complete", "serve", "--"}} {
		if out, code := runProgram(t, nil, both, words...); code != 0 || !strings.Contains(out, "--") {
			t.Errorf("%q: exit code %d\n%s", words, code, out)
		}
	}

	singleDir := copyInto("alone")
	copyProgram(t, both, filepath.Join(singleDir, programs[0]))
	client := filepath.Join(singleDir, programs[0])
	if out, code := runProgram(t, path, client, "version"); code != 0 {
		t.Errorf("version: exit code %d\n%s", code, out)
	}
	for _, words := range [][]string{{"serve"}, {"--dir", "x", "doctor"}, {"config", "validate"}, {"man", "."}} {
		if out, code := runProgram(t, path, client, words...); code != 1 ||
			!strings.Contains(out, "queuectl: program "+programs[1]+" not found in ") || !strings.Contains(out, "make build") {
			t.Errorf("%q without queuectld: exit code %d\n%s", words, code, out)
		}
	}
	if out, code := runProgram(t, path, client, "run", "--private", "--lines", "-"); code != 125 ||
		!strings.Contains(out, "not found in ") {
		t.Errorf("run --private without queuectld: exit code %d\n%s", code, out)
	}

	duplicateDir := copyInto("twice")
	for _, name := range programs {
		copyProgram(t, both, filepath.Join(duplicateDir, name))
	}
	for _, name := range programs {
		if out, code := runProgram(t, nil, filepath.Join(duplicateDir, name), "--dir", "q", "serve"); code != 1 ||
			!strings.Contains(out, "is queuectl, not queuectld") {
			t.Errorf("%s where both are queuectl: exit code %d\n%s", name, code, out)
		}
	}

	lone := filepath.Join(copyInto("lone"), programs[1])
	copyProgram(t, filepath.Join(filepath.Dir(both), programs[1]), lone)
	if out, code := runProgram(t, path, lone, "--dir", "q", "serve"); code == 0 ||
		!strings.Contains(out, "program "+programs[0]+" not found in ") {
		t.Errorf("serve without queuectl: exit code %d\n%s", code, out)
	}

	prefix := copyInto("usr")
	for name, dir := range map[string]string{programs[0]: "bin", programs[1]: "libexec/queuectl"} {
		to := filepath.Join(prefix, dir)
		if err := os.MkdirAll(to, 0o755); err != nil {
			t.Fatal(err)
		}
		copyProgram(t, filepath.Join(filepath.Dir(both), name), filepath.Join(to, name))
	}
	q := newQueue(t, "")
	q.bin = filepath.Join(prefix, "bin", programs[0])
	q.start("--workers", "1")
	if got := q.must("run", "--", toolPath("echo"), "one"); strings.TrimSpace(got) != "one" {
		t.Errorf("a job says %q", got)
	}
}

// Both programs list the same commands with the same descriptions.
func TestProgramsListTheSameCommands(t *testing.T) {
	t.Parallel()
	client := binary(t, "")
	daemon := filepath.Join(filepath.Dir(client), programs[1])
	help, _ := runProgram(t, nil, client, "--help")
	if got, _ := runProgram(t, nil, daemon, "--help"); got != help {
		t.Errorf("queuectld: %s\nqueuectl: %s", got, help)
	}
}

// doctor reports a queuectl whose version differs from queuectld's, which happens after an incomplete
// upgrade.
func TestDoctorFindsHalfAnUpgrade(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.start("--workers", "1")
	q.checkHealthy("both of one version")
	daemon := filepath.Join(filepath.Dir(q.bin), programs[1])
	out, code := runProgram(t, []string{"QUEUECTL_CLIENT_VERSION=0.0.1"}, daemon, "--dir", q.dir, "doctor")
	if code != 1 || !strings.Contains(out, "queuectl has version 0.0.1, but queuectld ") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
