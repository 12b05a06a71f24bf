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

// fsync watches the system calls of a service while clients enqueue: no answer
// may be written before an fsync of the WAL, begun after the last write to it
// that followed the request, has returned 0.
func (b *bench) fsync() error {
	if _, err := exec.LookPath("strace"); err != nil {
		return fmt.Errorf("the check that answers follow fsync needs strace: %w", err)
	}
	for _, clients := range []int{1, 64} {
		answers, syncs, err := b.traced(clients)
		if err != nil {
			return fmt.Errorf("%d clients: %w", clients, err)
		}
		b.report.judge(row{fmt.Sprintf("answers that followed an fsync of their commit, %d clients", clients),
			strconv.Itoa(answers), fmt.Sprintf("%d fsyncs of the WAL", syncs), "", "all", ""}, true)
	}
	return nil
}

// traced has clients enqueue for a moment under strace and reads the trace.
func (b *bench) traced(clients int) (answers, syncs int, err error) {
	s, err := b.serve()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.discard()) }()
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
	first, err := bufio.NewReader(stderr).ReadString('\n') // "Process … attached"
	if err != nil || !strings.Contains(first, "attached") {
		return 0, 0, errors.Join(fmt.Errorf("strace: %s", strings.TrimSpace(first)), err, trace.Wait())
	}
	done, err := s.crowd(clients, time.Second/2)
	trace.Process.Signal(syscall.SIGINT) // it detaches
	trace.Wait()                         // it ends with the signal, as it is meant to
	if err != nil {
		return 0, 0, err
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	answers, syncs, err = readTrace(bufio.NewScanner(f))
	if err == nil && answers != len(done.waits) {
		err = fmt.Errorf("%d answers in the trace, %d were received", answers, len(done.waits))
	}
	return answers, syncs, err
}

var (
	wholeCall = regexp.MustCompile(`^(\d+) +(\w+)\((\d+)<([^>]*)>(.*)$`)
	resumed   = regexp.MustCompile(`^(\d+) +<\.\.\. (\w+) resumed>(.*)$`)
)

// traceState is where the calls stand, in lines of the trace.
type traceState struct {
	begun    map[string]call // by thread
	request  map[string]int  // by connection: when its last request had been read
	written  int             // when the WAL was last written to
	synced   []durable       // fsyncs of the WAL that have returned 0
	answers  int
	problems []error
}

// call is a system call that has begun.
type call struct {
	name, fd, path, args string
	at                   int
	lastWrite            int // to the WAL, before it began
}

// durable is one fsync: the last write to the WAL before it began.
type durable struct{ lastWrite int }

func readTrace(lines *bufio.Scanner) (answers, syncs int, err error) {
	t := &traceState{begun: map[string]call{}, request: map[string]int{}}
	for at := 1; lines.Scan(); at++ {
		text := lines.Text()
		if m := wholeCall.FindStringSubmatch(text); m != nil {
			c := call{m[2], m[3], m[4], m[5], at, t.written}
			t.begin(c)
			if rest, unfinished := strings.CutSuffix(c.args, "<unfinished ...>"); unfinished {
				c.args = rest
				t.begun[m[1]] = c
			} else {
				t.end(c, c.args, at)
			}
		} else if m := resumed.FindStringSubmatch(text); m != nil {
			if c, known := t.begun[m[1]]; known && c.name == m[2] {
				delete(t.begun, m[1])
				t.end(c, m[3], at)
			}
		}
	}
	return t.answers, len(t.synced), errors.Join(append(t.problems, lines.Err())...)
}

const answerStart = `, "{\"jsonrpc\":\"2.0\",\"id\":`

// begin is the moment a call goes into the kernel: an answer is out from here.
func (t *traceState) begin(c call) {
	switch {
	case c.name == "pwrite64" && strings.HasSuffix(c.path, "-wal"):
		t.written = c.at
	case (c.name == "write" || c.name == "sendto") && strings.HasPrefix(c.args, answerStart):
		t.answers++
		asked := t.request[c.fd]
		if n := len(t.synced); n > 0 && asked > 0 && t.synced[n-1].lastWrite > asked {
			return
		}
		if len(t.problems) < 5 {
			t.problems = append(t.problems, fmt.Errorf("line %d of the trace: an answer without an fsync after its request, which was read at line %d", c.at, asked))
		}
	}
}

// end is the moment a call returns.
func (t *traceState) end(c call, tail string, at int) {
	switch c.name {
	case "fsync", "fdatasync":
		if strings.HasSuffix(c.path, "-wal") && strings.HasSuffix(tail, "= 0") {
			t.synced = append(t.synced, durable{c.lastWrite})
		}
	case "read", "recvfrom":
		if strings.Contains(c.args+tail, `{\"jsonrpc\"`) {
			t.request[c.fd] = at
		}
	}
}
