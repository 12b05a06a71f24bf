package process

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// PreferOOMKillOfCommands makes the kernel end commands first when memory runs out, before this process
// and before more important processes. A command must have its score from its first moment, because
// processes that it starts immediately inherit the score. This process therefore raises its own score
// while it starts a command.
func PreferOOMKillOfCommands() error {
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return fmt.Errorf("cannot read oom_score_adj: %w", err)
	}
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot set oom_score_adj: %w", err)
	}
	scores.own, scores.fd, scores.enabled = []byte(strings.TrimSpace(string(score))), fd, true
	return nil
}

// commandScore is the oom_score_adj of commands.
const commandScore = "200"

// scores holds what is needed to change this process's oom_score_adj.
var scores struct {
	enabled bool // enabled, own and fd are set before the first command
	own     []byte
	fd      int

	mu    sync.Mutex
	forks int // starts under way; guarded by mu
}

// raiseOOMScore raises this process's score while a command is started. The caller must call the result
// after the start.
func raiseOOMScore() (end func()) {
	if !scores.enabled {
		return func() {}
	}
	raise()
	return lower
}

func raise() {
	scores.mu.Lock()
	defer scores.mu.Unlock()
	if scores.forks++; scores.forks == 1 {
		unix.Pwrite(scores.fd, []byte(commandScore), 0) // if this is refused, the score does not change
	}
}

func lower() {
	scores.mu.Lock()
	defer scores.mu.Unlock()
	if scores.forks--; scores.forks == 0 {
		unix.Pwrite(scores.fd, scores.own, 0)
	}
}
