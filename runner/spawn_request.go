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
// Systemd or the launcher starts a new process, which reads the line and turns into the runner. It replies
// with one line: the name of the runner's directory, or the reason why it cannot run. If the service starts a
// runner itself, the runner sends the same line through a pipe. The service and the runner may be of
// different versions, so the words never change.

// Words of a request. accountArg is followed by the name of the account that the runner switches to.
// tmpdirArg is followed by a path, which extends to the end of the line. killArg makes the line a request to
// kill a runner, whose name follows.
const (
	requestPrefix = "queuectl wants a runner"
	isolatedArg   = "alone"
	accountArg    = "as="
	tmpdirArg     = "tmpdir="
	killArg       = "end="
)

// Words of the reply. ReadyReplyPrefix is followed by the name of the new runner's directory, and
// RefusedReplyPrefix by the reason why no runner was started.
const (
	ReadyReplyPrefix   = "queuectl runner "
	RefusedReplyPrefix = "queuectl refused "
)

// SpawnRequest is a service's request for a runner.
type SpawnRequest struct {
	Isolated bool   // the runner runs one isolated job
	Account  string // account that the runner switches to permanently; "" if it does not switch
	Tmpdir   string // setting job_tmpdir, for a runner of the service's own account
	// KillDir is the directory of a runner to be killed, as a path relative to the directory of root's
	// runners. It is "" in a request for a new runner.
	KillDir string
}

// String returns the request as one line, without the newline.
func (r SpawnRequest) String() string {
	line := requestPrefix
	if r.KillDir != "" {
		return line + " " + killArg + r.KillDir
	}
	if r.Isolated {
		line += " " + isolatedArg
	}
	if r.Account != "" {
		line += " " + accountArg + r.Account
	}
	if r.Tmpdir != "" {
		line += " " + tmpdirArg + r.Tmpdir
	}
	return line
}

// ParseSpawnRequest parses a line that String returned.
func ParseSpawnRequest(line string) (r SpawnRequest, err error) {
	words, ok := strings.CutPrefix(line, requestPrefix)
	if !ok {
		return r, fmt.Errorf("the service and the runner have different versions: the new runner does not know the request "+
			"%q; install the same version of both", line)
	}
	words, r.Tmpdir, _ = strings.Cut(words, " "+tmpdirArg)
	for _, word := range strings.Fields(words) {
		account, isAccount := strings.CutPrefix(word, accountArg)
		end, isEnd := strings.CutPrefix(word, killArg)
		switch {
		case word == isolatedArg:
			r.Isolated = true
		case isAccount:
			r.Account = account
		case isEnd && end != "":
			r.KillDir = end
		default:
			return r, fmt.Errorf("unknown word %q in the service's request: the service is newer than this "+
				"runner; install the same version of both", word)
		}
	}
	return r, nil
}

// readReadyReply reads the reply of a new runner and returns the name of the runner's directory.
func readReadyReply(r io.Reader) (dirName string, err error) {
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
