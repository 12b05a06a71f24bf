package process

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Expendable has the kernel, where memory runs out, end commands before this process
// and before what is more useful. A command has its score from its first moment, or what
// it starts at once would not: so this process has it for as long as it starts one.
func Expendable() error {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return fmt.Errorf("read oom_score_adj: %w", err)
	}
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set oom_score_adj: %w", err)
	}
	scores.own, scores.fd, scores.on = []byte(strings.TrimSpace(string(own))), fd, true
	return nil
}

// commandScore is the oom_score_adj of commands.
const commandScore = "200"

// scores is the score of this process, which is that of commands while it starts some.
var scores struct {
	on  bool // as the others before mu, set before the first command
	own []byte
	fd  int

	mu    sync.Mutex
	forks int // under way; guarded by mu
}

// expendable has commands started with their score until end.
func expendable() (end func()) {
	if !scores.on {
		return func() {}
	}
	raise()
	return lower
}

func raise() {
	scores.mu.Lock()
	defer scores.mu.Unlock()
	if scores.forks++; scores.forks == 1 {
		unix.Pwrite(scores.fd, []byte(commandScore), 0) // may be refused: then nothing is set at all
	}
}

func lower() {
	scores.mu.Lock()
	defer scores.mu.Unlock()
	if scores.forks--; scores.forks == 0 {
		unix.Pwrite(scores.fd, scores.own, 0)
	}
}
