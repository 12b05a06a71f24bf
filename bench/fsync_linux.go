package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// checkFsyncBeforeReply checks that the service stores a job durably before it replies. For this, it traces the system
// calls of the service while clients enqueue.
func (b *bench) checkFsyncBeforeReply() error {
	if _, err := exec.LookPath("strace"); err != nil {
		return fmt.Errorf("strace is needed to check that answers follow an fsync: %w", err)
	}
	for _, clients := range []int{1, 64} {
		answers, syncs, err := b.traceEnqueues(clients)
		if err != nil {
			return fmt.Errorf("%d clients: %w", clients, err)
		}
		b.results.addRowWithVerdict(row{fmt.Sprintf("answers sent after an fsync of their commit, %d clients", clients),
			strconv.Itoa(answers), fmt.Sprintf("%d fsyncs of the WAL", syncs), "", "all", ""}, true)
	}
	return nil
}

// traceEnqueues lets clients enqueue for half a second while strace traces a service. It returns how many replies and
// how many fsyncs the trace contains.
func (b *bench) traceEnqueues(clientCount int) (replyCount, fsyncCount int, err error) {
	s, err := b.startService()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.stopAndRemoveDir()) }()
	path := filepath.Join(b.dir, "trace")
	trace := exec.Command("strace", "-f", "-y", "-s", "64", "-o", path, "-p", strconv.Itoa(s.pid()),
		"-e", "trace=fsync,fdatasync,read,recvfrom,write,sendto,pwrite64")
	stderr, err := trace.StderrPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := trace.Start(); err != nil {
		return 0, 0, err
	}
	first, err := bufio.NewReader(stderr).ReadString('\n') // strace prints "Process … attached"
	if err != nil || !strings.Contains(first, "attached") {
		return 0, 0, errors.Join(fmt.Errorf("strace: %s", strings.TrimSpace(first)), err, trace.Wait())
	}
	done, err := s.enqueueConcurrently(clientCount, time.Second/2)
	trace.Process.Signal(syscall.SIGINT) // this makes strace detach from the service
	// Ignore the error, because strace always returns one when a signal has ended it.
	trace.Wait()
	if err != nil {
		return 0, 0, err
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	replyCount, fsyncCount, err = analyzeStrace(bufio.NewScanner(f))
	if err == nil && replyCount != len(done.latencySeconds) {
		err = fmt.Errorf("the trace contains %d answers, but the clients received %d", replyCount, len(done.latencySeconds))
	}
	return replyCount, fsyncCount, err
}

// These expressions match the lines of strace for the start of a call and for the end of an unfinished call.
var (
	syscallStartPattern   = regexp.MustCompile(`^(\d+) +(\w+)\((\d+)<([^>]*)>(.*)$`)
	syscallResumedPattern = regexp.MustCompile(`^(\d+) +<\.\.\. (\w+) resumed>(.*)$`)
)

// straceAnalysis is the state of analyzeStrace after it has read some lines of the trace. A position is a line number
// of the trace.
type straceAnalysis struct {
	unfinishedCallByThread map[string]tracedSyscall // system calls that have not returned, by thread
	// position at which the service had read the latest request, by connection
	lastRequestLineByConn map[string]int
	lastWALWriteLine      int       // position of the last write to the WAL, SQLite's write-ahead log
	walSyncs              []walSync // fsyncs of the WAL that have returned 0
	replyCount            int
	problems              []error
}

// tracedSyscall is a system call in the trace.
type tracedSyscall struct {
	name, fd, path, args string
	lineNumber           int
	lastWALWriteLine     int // position of the last write to the WAL when the call began
}

// walSync is a successful fsync of the WAL. It makes all writes up to position lastWALWriteLine durable. Later writes
// may have begun after the fsync began.
type walSync struct{ lastWALWriteLine int }

// analyzeStrace reads a trace and counts the replies and the successful fsyncs of the WAL. It returns an error if a
// reply precedes the fsync that makes its job durable.
func analyzeStrace(lines *bufio.Scanner) (replyCount, fsyncCount int, err error) {
	t := &straceAnalysis{unfinishedCallByThread: map[string]tracedSyscall{}, lastRequestLineByConn: map[string]int{}}
	for at := 1; lines.Scan(); at++ {
		text := lines.Text()
		if m := syscallStartPattern.FindStringSubmatch(text); m != nil {
			c := tracedSyscall{m[2], m[3], m[4], m[5], at, t.lastWALWriteLine}
			t.beginCall(c)
			if rest, unfinished := strings.CutSuffix(c.args, "<unfinished ...>"); unfinished {
				c.args = rest
				t.unfinishedCallByThread[m[1]] = c
			} else {
				t.endCall(c, c.args, at)
			}
		} else if m := syscallResumedPattern.FindStringSubmatch(text); m != nil {
			if c, known := t.unfinishedCallByThread[m[1]]; known && c.name == m[2] {
				delete(t.unfinishedCallByThread, m[1])
				t.endCall(c, m[3], at)
			}
		}
	}
	return t.replyCount, len(t.walSyncs), errors.Join(append(t.problems, lines.Err())...)
}

// replyPrefixInTrace is the beginning of a reply, as strace prints it after the descriptor of a write.
const replyPrefixInTrace = `, "{\"jsonrpc\":\"2.0\",\"id\":`

// beginCall handles the start of a system call. If the call writes a reply, beginCall checks that the service has
// synced the WAL after it read the request. beginCall does not wait for the return of the call, because the client may
// get the reply before the call returns.
func (t *straceAnalysis) beginCall(c tracedSyscall) {
	switch {
	case c.name == "pwrite64" && strings.HasSuffix(c.path, "-wal"):
		t.lastWALWriteLine = c.lineNumber
	case (c.name == "write" || c.name == "sendto") && strings.HasPrefix(c.args, replyPrefixInTrace):
		t.replyCount++
		asked := t.lastRequestLineByConn[c.fd]
		if n := len(t.walSyncs); n > 0 && asked > 0 && t.walSyncs[n-1].lastWALWriteLine > asked {
			return
		}
		if len(t.problems) < 5 {
			t.problems = append(t.problems, fmt.Errorf("line %d of the trace: the service sent an answer without an fsync "+
				"after it read the request (line %d)", c.lineNumber, asked))
		}
	}
}

// endCall handles the return of a system call.
func (t *straceAnalysis) endCall(c tracedSyscall, resultText string, returnLine int) {
	switch c.name {
	case "fsync", "fdatasync":
		if strings.HasSuffix(c.path, "-wal") && strings.HasSuffix(resultText, "= 0") {
			t.walSyncs = append(t.walSyncs, walSync{c.lastWALWriteLine})
		}
	case "read", "recvfrom":
		if strings.Contains(c.args+resultText, `{\"jsonrpc\"`) {
			t.lastRequestLineByConn[c.fd] = returnLine
		}
	}
}
