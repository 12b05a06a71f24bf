//go:build linux || windows

package testrig

import (
	"flag"
	"os/exec"
	"regexp"
	"testing"
	"time"
)

// Update is the flag -update. If it is set, tests write the present output of the programs into their scripts.
// Review every changed line before you commit it.
var Update = flag.Bool("update", false, "write what is printed into the scripts")

// Shell runs the command lines of one script.
type Shell struct {
	testing.TB
	Work, Home   string // working directory and home directory of the script
	env          []string
	Replacements []Replacement
}

// StopService stops the script's service and checks that all processes of the script end.
func (s *Shell) StopService() {
	s.Command("queuectl service stop").Run() // fails harmlessly if the service has already stopped
	for deadline := time.Now().Add(10 * time.Second); len(ProcessesWithArg(s.Work)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Errorf("processes that the script left behind: %q", ProcessesWithArg(s.Work))
			return
		}
	}
}

// Command returns a command that runs one line of the script.
func (s *Shell) Command(line string) *exec.Cmd {
	cmd := s.lineCommand(line)
	cmd.Env, cmd.Dir = s.env, s.Work
	return cmd
}

// Replacement says which text replaces a part of the output that differs from run to run.
type Replacement struct {
	Find *regexp.Regexp
	Text string
}
