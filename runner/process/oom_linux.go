package process

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// PreferOOMKillOfCommands makes the kernel kill commands before this process and other important processes
// when memory runs out. For this, commands get a higher out-of-memory score (oom_score_adj). A command must
// have its score from its first moment, because its child processes inherit the score. This process
// therefore raises its own score while it starts a command.
func PreferOOMKillOfCommands() error {
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return fmt.Errorf("cannot read oom_score_adj: %w", err)
	}
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot set oom_score_adj: %w", err)
	}
	oomScores.own, oomScores.fd = []byte(strings.TrimSpace(string(score))), fd
	return nil
}

// commandOOMScore is the oom_score_adj of commands.
const commandOOMScore = "200"

// oomScores is the state with which this process changes its own oom_score_adj.
var oomScores struct {
	own []byte // this process's score between starts; nil if it never changes; set before the first command, like fd
	fd  int

	mu    sync.Mutex
	forks int // starts under way; guarded by mu
}

// countForks adds change to the number of commands that are being started. While this number is positive,
// this process has the score of commands.
func countForks(change int) {
	if oomScores.own == nil {
		return
	}
	oomScores.mu.Lock()
	defer oomScores.mu.Unlock()
	oomScores.forks += change
	switch { // ignore errors: if the kernel refuses a change, the score stays the same
	case oomScores.forks == 0:
		unix.Pwrite(oomScores.fd, oomScores.own, 0)
	case oomScores.forks == 1 && change > 0:
		unix.Pwrite(oomScores.fd, []byte(commandOOMScore), 0)
	}
}
