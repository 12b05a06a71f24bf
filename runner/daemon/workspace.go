package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// Limits of the result and the progress that an attempt reports. The unit is bytes where no other is
// named.
// See docs/decisions/0059.
const (
	maxValue        = 64 << 10
	maxNesting      = 24  // levels; the value is later nested in other JSON
	maxProgressText = 256 // bytes of a progress text
	maxProgressLine = 1 << 10
)

// progressInterval is the shortest time between two progress frames of one attempt.
const progressInterval = 500 * time.Millisecond

// resultName is the file in an attempt's private directory that the attempt writes its result to.
const resultName = "result.json"

// workspace is the workspace of one attempt: its private directory, and what the attempt reports
// through it (a result and its progress).
type workspace struct {
	s           *server
	a           *attempt
	dir         *workDir
	noDir       bool   // the disk was full, so the attempt runs without a private directory
	value       []byte // the attempt's result, as compact JSON; nil if it wrote no valid result
	resultError string // why the attempt's result file is invalid; "" if it is valid or missing
	progress    progress
	masks       [][]byte // secret values, replaced in everything the attempt reports
}

// SetMasks implements process.Notes. It also masks the JSON-escaped form of each text, since a result
// may contain a secret with escapes.
func (ws *workspace) SetMasks(texts [][]byte) {
	ws.masks = texts
	for _, t := range texts {
		if quoted, err := json.Marshal(string(t)); err == nil {
			ws.masks = append(ws.masks, quoted[1:len(quoted)-1])
		}
	}
	ws.progress.masks = ws.masks
}

// workDir is the private directory that one worker gives to its attempts, one after the other.
type workDir struct {
	*process.PrivateDir
	lastEnd     time.Time // end of the worker's last attempt
	env         []string  // variables that name the directory, the result file and the FIFO
	path, notes string    // values of Path and Notes when env was last built
}

// variables returns the environment variables that name the parts of the workspace.
func (f *workDir) variables() []string {
	if f.path != f.Path || f.notes != f.Notes {
		f.path, f.notes = f.Path, f.Notes
		f.env = []string{"QUEUECTL_TMPDIR=" + f.Path, "QUEUECTL_RESULT=" + filepath.Join(f.Path, resultName), "QUEUECTL_PROGRESS=" + f.Notes}
	}
	return f.env
}

// A worker removes the private directory when its attempt ends. But creating and removing a directory
// takes a fifth of a short job's time. The worker therefore keeps an empty directory for its next
// attempt in two cases: the attempt started within reuseGap after the previous one ended, or other
// attempts are waiting. A worker that finds no work removes the directory removeIdleAfter after its
// last attempt ended.
const (
	reuseGap        = time.Millisecond
	removeIdleAfter = 50 * time.Millisecond
)

// newWorkDir returns the private directory of one new worker, under a new name. It does not create the
// directory yet. The caller does not hold mu.
func (s *server) newWorkDir() *workDir {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirNames++
	return &workDir{PrivateDir: process.NewPrivateDir(filepath.Join(s.workspaces, strconv.Itoa(s.dirNames)))}
}

// removeIdleDir removes the private directory of an idle worker, if removeIdleAfter has passed since
// the worker's last attempt ended. Otherwise it schedules a wake-up of the idle workers. It reports
// whether it removed the directory. The caller holds mu; removeIdleDir releases mu during the removal.
func (s *server) removeIdleDir(f *workDir) bool {
	if time.Since(f.lastEnd) < removeIdleAfter {
		if s.idleDirTimer == nil {
			s.idleDirTimer = time.AfterFunc(removeIdleAfter, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.workerCond.Broadcast()
			})
		}
		s.idleDirTimer.Reset(removeIdleAfter)
		return false
	}
	s.mu.Unlock()
	f.RemoveUnused()
	s.mu.Lock()
	return true
}

// open creates the private directory of a command and adds the variables that name it to the command's
// environment.
func (ws *workspace) open(c *process.Command) error {
	f := ws.dir
	deps := ws.a.start.Deps
	err := f.Open(c.RunAs)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) { // the parent directory was removed
		if _, err = rundir.MakeWorkspaces(ws.s.Root, ws.s.Tmpdir, ws.s.name, ws.s.accounts != nil); err == nil {
			err = f.Open(c.RunAs)
		}
	}
	if err != nil {
		if ws.noDir = len(deps) == 0 && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)); ws.noDir {
			ws.s.Log.Warn("no disk space for a job's private directory; the job runs without one", "job", ws.a.start.Seq, "error", err)
			return nil // a full disk must not prevent the job from running
		}
		return err
	}
	c.PrivateDir, c.Notes = f.PrivateDir, ws
	c.Env = append(c.Env, f.variables()...)
	if len(deps) == 0 {
		return nil
	}
	path, err := f.AddFile("deps.json", deps)
	if err != nil {
		return fmt.Errorf("cannot write the file with the results of the job's dependencies (QUEUECTL_DEPS): %w", err)
	}
	c.Env = append(c.Env, "QUEUECTL_DEPS="+path)
	return nil
}

// collect reads the result and the progress that the command left. It moves a used directory aside and
// lets the sweeper remove it. It removes an unused directory immediately, or keeps it for the worker's
// next attempt (see reuseGap).
func (ws *workspace) collect(r *process.Result) {
	f := ws.dir
	if ws.noDir {
		return
	}
	survived := r.Spared || r.StuckPID != 0 || r.Traced
	if f.HasNotes() || survived || r.Leftovers > 0 {
		ws.progress.parse(f.Drain())
		ws.progress.flush()
	}
	if len(ws.a.start.Deps) > 0 {
		f.RemoveFile("deps.json")
	}
	switch {
	case f.Used() || survived:
		ws.value, ws.resultError = readValue(f, ws.masks)
		owner, err := process.OwnerOf(f.Path)
		path := f.MoveAside(survived)
		if err == nil {
			ws.s.sweeper.add(path, owner)
		}
	case r.StartedAt.Sub(f.lastEnd) > reuseGap && ws.s.noneWaiting():
		f.RemoveUnused()
	}
	f.lastEnd = r.EndedAt
}

// noneWaiting reports whether no attempt waits for a worker.
func (s *server) noneWaiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) == 0
}

// readValue reads the result that an attempt wrote. It returns nil if the attempt wrote no result. If
// the result is invalid, it returns nil and the reason in problem.
func readValue(f *workDir, masks [][]byte) (value []byte, problem string) {
	raw, err := f.Read(resultName, maxValue)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, ""
	case err != nil:
		return nil, "the file could not be read: " + err.Error()
	case len(raw) > maxValue:
		return nil, fmt.Sprintf("larger than %d bytes", maxValue)
	case len(bytes.TrimSpace(raw)) == 0:
		return nil, "empty"
	case !utf8.Valid(raw):
		return nil, "not UTF-8"
	case nesting(raw) > maxNesting:
		return nil, fmt.Sprintf("nested more than %d levels deep", maxNesting)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, output.Masked(raw, masks)); err != nil {
		return nil, "not JSON: " + strings.TrimPrefix(err.Error(), "json: ")
	}
	return compact.Bytes(), ""
}

// nesting returns how deep JSON is nested. For invalid JSON the number is meaningless.
func nesting(raw []byte) (deepest int) {
	depth, text := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// progress parses the lines that an attempt writes to its progress FIFO. A line is "N" or "N text",
// with N in percent. Only the last valid line is reported.
type progress struct {
	last  wire.Progress
	line  []byte   // the current line so far, without its end
	skip  bool     // the current line is longer than maxProgressLine and is ignored
	masks [][]byte // secret values, replaced in each line
}

// parse parses the next bytes from the FIFO. It reports whether they completed a valid line.
func (p *progress) parse(data []byte) (valid bool) {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		part := data
		if end >= 0 {
			part = data[:end]
		}
		if p.skip = p.skip || len(p.line)+len(part) > maxProgressLine; !p.skip {
			p.line = append(p.line, part...)
		}
		if end < 0 {
			return valid
		}
		valid = p.flush() || valid
		data = data[end+1:]
	}
	return valid
}

// flush parses the bytes of the current line as if the line had ended. It reports whether the line is
// valid.
func (p *progress) flush() (valid bool) {
	percent, text, ok := parseProgress(string(output.Masked(p.line, p.masks)))
	if ok = ok && !p.skip; ok {
		p.last = wire.Progress{At: time.Now().UnixMilli(), Percent: percent, Text: text}
	}
	p.line, p.skip = p.line[:0], false
	return ok
}

// parseProgress parses a line "N" or "N text", with N from 0 to 100. It cuts the text to
// maxProgressText bytes.
func parseProgress(line string) (percent int64, text string, ok bool) {
	number, text, _ := strings.Cut(strings.TrimSpace(line), " ")
	percent, err := strconv.ParseInt(strings.TrimSuffix(number, "%"), 10, 64)
	if err != nil || percent < 0 || percent > 100 || number[0] == '+' {
		return 0, "", false
	}
	text = strings.TrimSpace(text)
	if len(text) > maxProgressText {
		text = text[:maxProgressText]
		for range utf8.UTFMax - 1 { // drop the bytes of a character that was cut in two
			if r, size := utf8.DecodeLastRuneInString(text); r == utf8.RuneError && size == 1 {
				text = text[:len(text)-1]
			}
		}
	}
	return percent, strings.ToValidUTF8(text, "?"), true
}

// OnNotes implements process.Notes. It parses the bytes that the command wrote to its FIFO, and sends
// the progress to the service at most once every progressInterval. It returns true if it must be called
// again later, because progress is unsent or a line has not ended.
func (ws *workspace) OnNotes(data []byte) (callAgain bool) {
	p := &ws.progress
	if !p.parse(data) && len(data) == 0 && len(p.line) > 0 {
		p.flush() // no more bytes came, so a line without a newline is complete too
	}
	// Only this goroutine changes ws.a.progress, so it can be read without mu.
	sent := ws.a.progress
	if p.last.At == sent.At {
		return len(p.line) > 0
	}
	if p.last.At-sent.At < progressInterval.Milliseconds() && time.Now().UnixMilli()-sent.At < progressInterval.Milliseconds() {
		return true
	}
	ws.s.mu.Lock()
	defer ws.s.mu.Unlock()
	ws.a.progress = p.last
	ws.s.send(&wire.Telling{Lease: lease(ws.a), Progress: p.last}, false)
	return len(p.line) > 0
}
