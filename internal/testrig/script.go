//go:build linux || windows

package testrig

import (
	"flag"
	"os/exec"
	"regexp"
	"testing"
	"time"
)

// UpdateExpectedOutput is the flag -update. If it is set, tests replace the expected output in their scripts by the
// current output of the programs. Review every changed line before you commit it.
var UpdateExpectedOutput = flag.Bool("update", false, "write what is printed into the scripts")

// ScriptShell runs the command lines of one script.
type ScriptShell struct {
	testing.TB
	WorkDir, HomeDir   string // working directory and home directory of the script
	env                []string
	OutputReplacements []OutputReplacement
}

// StopService stops the script's service and checks that all processes of the script end.
func (s *ScriptShell) StopService() {
	s.Command("queuectl service stop").Run() // fails harmlessly if the service has already stopped
	deadline := time.Now().Add(10 * time.Second)
	for ; len(ProcessesWithArg(s.WorkDir)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Errorf("processes that the script left behind: %q", ProcessesWithArg(s.WorkDir))
			return
		}
	}
}

// Command returns a command that runs one line of the script.
func (s *ScriptShell) Command(line string) *exec.Cmd {
	cmd := s.scriptLineCommand(line)
	cmd.Env, cmd.Dir = s.env, s.WorkDir
	return cmd
}

// OutputReplacement is a pattern for output that differs from run to run, and the text that replaces it.
type OutputReplacement struct {
	Pattern *regexp.Regexp
	NewText string
}
