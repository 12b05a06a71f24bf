package process

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// PreferOOMKillOfCommands makes the kernel kill commands, not this process or other important ones, when memory runs
// out. For this, commands get a higher out-of-memory score (oom_score_adj). Processes inherit the score of their
// parent, and a command needs its score from its first moment. This process therefore raises its own score while it
// starts a command.
func PreferOOMKillOfCommands() error {
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return fmt.Errorf("cannot read oom_score_adj: %w", err)
	}
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot set oom_score_adj: %w", err)
	}
	ownOOMScoreState.ownScore, ownOOMScoreState.fd = []byte(strings.TrimSpace(string(score))), fd
	return nil
}

// commandOOMScoreAdj is the oom_score_adj of commands.
const commandOOMScoreAdj = "200"

// ownOOMScoreState is the state that this process needs to change its own oom_score_adj.
var ownOOMScoreState struct {
	ownScore []byte // normal score of this process; nil if it never changes; set before the first command
	fd       int    // descriptor of oom_score_adj; set before the first command

	mu    sync.Mutex
	forks int // number of forks that are in progress; guarded by mu
}

// raiseOOMScore raises this process's score to the score of commands while a command is being started. The caller
// must call the returned function after the start. The last of several overlapping starts restores the score.
func raiseOOMScore() (restore func()) {
	if ownOOMScoreState.ownScore == nil {
		return func() {}
	}
	ownOOMScoreState.mu.Lock()
	defer ownOOMScoreState.mu.Unlock()
	if ownOOMScoreState.forks++; ownOOMScoreState.forks == 1 {
		// if the kernel refuses this, the score does not change
		unix.Pwrite(ownOOMScoreState.fd, []byte(commandOOMScoreAdj), 0)
	}
	return func() {
		ownOOMScoreState.mu.Lock()
		defer ownOOMScoreState.mu.Unlock()
		if ownOOMScoreState.forks--; ownOOMScoreState.forks == 0 {
			unix.Pwrite(ownOOMScoreState.fd, ownOOMScoreState.ownScore, 0)
		}
	}
}
