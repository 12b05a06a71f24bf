//go:build linux || windows

package testrig

import (
	"bufio"
)

// StartFollowing starts a command and returns its output lines. The function end kills the command; the end
// of the test does so too.
func (q *Queue) StartFollowing(args ...string) (lines *bufio.Scanner, end func()) {
	q.Helper()
	cmd := q.Command(args...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		q.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return bufio.NewScanner(pipe), func() { cmd.Process.Kill() }
}
