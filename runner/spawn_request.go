package runner

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// This file defines how a service requests a runner that it cannot start itself.
//
// The service connects to a socket of systemd or of the launcher, and sends a SpawnRequest as one line:
//
//	queuectl wants a runner alone as=mail
//
// Systemd or the launcher starts a new process, which reads the line and then is the runner. The process replies with
// one line: the name of the runner's directory, or the reason why it cannot run. If the service starts a runner itself,
// the runner sends the same line through a pipe. The words of these lines must never change, because the service and
// the runner may be of different versions.

// These are the words of a request. The name of the account that the runner switches to follows spawnAccountArg. A
// path, which extends to the end of the line, follows spawnTmpdirArg. A line with spawnKillArg is a request to kill a
// runner, whose name follows.
const (
	spawnRequestPrefix = "queuectl wants a runner"
	spawnIsolatedArg   = "alone"
	spawnAccountArg    = "as="
	spawnTmpdirArg     = "tmpdir="
	spawnKillArg       = "end="
)

// These are the words of the reply. The name of the new runner's directory follows ReadyReplyPrefix. The reason why no
// runner was started follows RefusedReplyPrefix.
const (
	ReadyReplyPrefix   = "queuectl runner "
	RefusedReplyPrefix = "queuectl refused "
)

// SpawnRequest is a service's request for a runner.
type SpawnRequest struct {
	ForIsolatedJob  bool   // the runner runs one isolated job
	SwitchToAccount string // account that the runner switches to permanently; "" if it does not switch
	JobTmpdir       string // setting job_tmpdir, for a runner of the service's own account
	// RunnerDirToKill is the directory of a runner to be killed, as a path relative to the directory of root's
	// runners. It is "" in a request for a new runner.
	RunnerDirToKill string
}

// String returns the request as one line, without the newline.
func (r SpawnRequest) String() string {
	line := spawnRequestPrefix
	if r.RunnerDirToKill != "" {
		return line + " " + spawnKillArg + r.RunnerDirToKill
	}
	if r.ForIsolatedJob {
		line += " " + spawnIsolatedArg
	}
	if r.SwitchToAccount != "" {
		line += " " + spawnAccountArg + r.SwitchToAccount
	}
	if r.JobTmpdir != "" {
		line += " " + spawnTmpdirArg + r.JobTmpdir
	}
	return line
}

// ParseSpawnRequest parses a line that String returned.
func ParseSpawnRequest(line string) (r SpawnRequest, err error) {
	words, ok := strings.CutPrefix(line, spawnRequestPrefix)
	if !ok {
		return r, fmt.Errorf("the service and the runner have different versions: the new runner does not know the request "+
			"%q; install the same version of both", line)
	}
	words, r.JobTmpdir, _ = strings.Cut(words, " "+spawnTmpdirArg)
	for _, word := range strings.Fields(words) {
		account, isAccount := strings.CutPrefix(word, spawnAccountArg)
		end, isEnd := strings.CutPrefix(word, spawnKillArg)
		switch {
		case word == spawnIsolatedArg:
			r.ForIsolatedJob = true
		case isAccount:
			r.SwitchToAccount = account
		case isEnd && end != "":
			r.RunnerDirToKill = end
		default:
			return r, fmt.Errorf("unknown word %q in the service's request: the service is newer than this "+
				"runner; install the same version of both", word)
		}
	}
	return r, nil
}

// readSpawnReply reads the reply of a new runner and returns the name of the runner's directory.
func readSpawnReply(r io.Reader) (dirName string, err error) {
	line, err := bufio.NewReader(io.LimitReader(r, 4096)).ReadString('\n')
	line = strings.TrimSuffix(line, "\n")
	if reason, refused := strings.CutPrefix(line, RefusedReplyPrefix); refused {
		return "", errors.New(reason)
	}
	dirName, ok := strings.CutPrefix(line, ReadyReplyPrefix)
	if err != nil {
		return "", fmt.Errorf("the new process ended or hung before it was ready (%w); its own error message is in "+
			"the journal or in the service's log", err)
	}
	if !ok || filepath.Base(dirName) != dirName {
		return "", fmt.Errorf("the new process replied %q instead of the name of a runner; its own error message "+
			"is in the journal or in the service's log", line)
	}
	return dirName, nil
}
