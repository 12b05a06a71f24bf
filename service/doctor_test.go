package service

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/parts"
)

// Advice about a runner with an unknown pid never suggests to kill process 0, which would signal the user's own
// process group.
func TestEndRunnerAdviceNamesOnlyKnownProcess(t *testing.T) {
	if got := doctor.HungRunnerAdvice(0); strings.ContainsAny(got, "0123456789") ||
		strings.Contains(strings.ToLower(got), "kill") {
		t.Errorf("of a runner whose process is unknown: %s", got)
	}
	if got := doctor.HungRunnerAdvice(4711); !strings.Contains(got, "4711") {
		t.Errorf("of process 4711: %s", got)
	}
}

// The command "service stop --runners" finds root's runners only for the packaged service. For every other
// state directory, the advice to end such runners names their directory.
func TestAdviceNamesUnknownRunnerDir(t *testing.T) {
	state := config.SystemPaths().StateDir
	for _, c := range []struct{ state, roots, command, found string }{
		{state, config.RootRunnerDir, "queuectl --dir " + state + " service stop --runners", config.RootRunnerDir},
		{"/srv/q", "/srv/r", "queuectl --dir /srv/q service stop --runners --runner-dir /srv/r", ""},
		{"/srv/q", "", "queuectl --dir /srv/q service stop --runners", ""},
	} {
		p := config.PathsInDir(c.state)
		if got := rootRunnersDir(p); got != c.found {
			t.Errorf("root's runners of %s are in %q, want %q", c.state, got, c.found)
		}
		s := &Service{startup: &startup{Dependencies: &parts.Dependencies{ServiceInfo: parts.ServiceInfo{Paths: p},
			CoreParts: parts.CoreParts{RunnerLocation: runner.RunnersLocation{RunnersDir: cluster.RunnersDir(p)}}}}}
		if c.roots != "" {
			s.RunnerLocation = runner.RunnersLocation{RunnersDir: c.roots, SpawnSocketPath: "spawn.sock"}
		}
		if got := s.adoptionError(runner.ErrRunnerSawNewerDatabase).Error(); !strings.HasSuffix(got, ": "+c.command) {
			t.Errorf("%+v: got %s", c, got)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EndRunners(config.PathsInDir(t.TempDir()), file); runtime.GOOS != "windows" &&
		(err == nil || !strings.Contains(err.Error(), file)) {
		t.Errorf("runners in a file instead of a directory: %v", err)
	}
}
