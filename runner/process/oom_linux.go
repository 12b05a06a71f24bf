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
	oomScores.own, oomScores.fd, oomScores.enabled = []byte(strings.TrimSpace(string(score))), fd, true
	return nil
}

// commandOOMScore is the oom_score_adj of commands.
const commandOOMScore = "200"

// oomScores holds what is needed to change this process's oom_score_adj.
var oomScores struct {
	enabled bool // enabled, own and fd are set before the first command
	own     []byte
	fd      int

	mu    sync.Mutex
	forks int // starts under way; guarded by mu
}

// raiseOOMScore raises this process's score while a command is started. The caller must call the result
// after the start.
func raiseOOMScore() (end func()) {
	if !oomScores.enabled {
		return func() {}
	}
	raiseOwnOOMScore()
	return restoreOwnOOMScore
}

func raiseOwnOOMScore() {
	oomScores.mu.Lock()
	defer oomScores.mu.Unlock()
	if oomScores.forks++; oomScores.forks == 1 {
		unix.Pwrite(oomScores.fd, []byte(commandOOMScore), 0) // if this is refused, the score does not change
	}
}

func restoreOwnOOMScore() {
	oomScores.mu.Lock()
	defer oomScores.mu.Unlock()
	if oomScores.forks--; oomScores.forks == 0 {
		unix.Pwrite(oomScores.fd, oomScores.own, 0)
	}
}
