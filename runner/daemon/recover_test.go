package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/rundir"
)

// deadRunnerDir accepts only names of dead runners in the parent directory of this runner. It rejects names that lead
// to other directories. It also rejects the directory that contains the runners of an account, because the account can
// change the contents of that directory.
func TestDeadRunnerDirRejectsOtherNames(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"1.a", "as-mail", rundir.OutputsDirName} {
		if err := os.Mkdir(filepath.Join(root, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := &server{Options: Options{RunnerSettings: launcher.RunnerSettings{RunnersDir: root}}}
	if dir, err := s.deadRunnerDir("1.a"); err != nil || dir != filepath.Join(root, "1.a") {
		t.Errorf("a dead runner: got %q, %v", dir, err)
	}
	names := []string{"", ".", "..", ".x", "../x", "1.a/", "1.a/..", "/", "as-mail", "as-mail/1.a", rundir.OutputsDirName}
	if filepath.Separator != '/' {
		names = append(names, `..\x`, `1.a\`, `1.a\..`, `\`, `as-mail\1.a`, `C:1.a`, `C:\1.a`, `1.a:x`, "NUL")
	}
	for _, name := range names {
		if dir, err := s.deadRunnerDir(name); err == nil {
			t.Errorf("%q: got %q, want it refused", name, dir)
		}
	}
}
