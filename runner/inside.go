package runner

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
	"github.com/queuectl/queuectl/runner/wire"
)

// Limits of what an attempt leaves and tells, in bytes unless said otherwise.
// See docs/decisions/0059.
const (
	maxValue     = 64 << 10
	maxNesting   = 24  // of it: it travels inside of other JSON
	maxTold      = 256 // text of its progress
	maxNotedLine = 1 << 10
)

// tellEvery is the least time between two frames about the progress of an attempt.
const tellEvery = 500 * time.Millisecond

// resultName is the file in its folder that an attempt leaves as its result.
const resultName = "result.json"

// inside is what an attempt has inside: its folder, and what it says there.
type inside struct {
	s        *server
	a        *attempt
	folder   *workFolder
	bare     bool   // the disk was too full for a folder
	value    []byte // that it has left
	fault    string // why it is none
	progress progress
	masks    [][]byte // texts that are not kept
}

// Masks implements process.Notes. In JSON a text may be written with escapes.
func (in *inside) Masks(texts [][]byte) {
	in.masks = texts
	for _, t := range texts {
		if quoted, err := json.Marshal(string(t)); err == nil {
			in.masks = append(in.masks, quoted[1:len(quoted)-1])
		}
	}
	in.progress.masks = in.masks
}

// workFolder is that of one worker.
type workFolder struct {
	*process.Folder
	ended       time.Time // of the last attempt
	env         []string  // that names the folder and what is there
	path, notes string    // which ones it names
}

// variables are the variables that name what there is for an attempt.
func (f *workFolder) variables() []string {
	if f.path != f.Path || f.notes != f.Notes {
		f.path, f.notes = f.Path, f.Notes
		f.env = []string{"QUEUECTL_TMPDIR=" + f.Path, "QUEUECTL_RESULT=" + filepath.Join(f.Path, resultName), "QUEUECTL_PROGRESS=" + f.Notes}
	}
	return f.env
}

// While attempts follow each other within rushGap a worker keeps a folder that is empty for the
// next one: to make and remove one costs a fifth of what a short job does. Else it goes with its
// attempt, and after a rush restAfter its end.
const (
	rushGap   = time.Millisecond
	restAfter = 50 * time.Millisecond
)

// newFolder makes a name for the folders of one worker. The caller does not hold mu.
func (s *server) newFolder() *workFolder {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.folders++
	return &workFolder{Folder: process.NewFolder(filepath.Join(s.place, strconv.Itoa(s.folders)))}
}

// rest removes the folder of a worker that has nothing to do, once a rush is over, and reports
// whether it did. The caller holds mu, which is released meanwhile.
func (s *server) rest(f *workFolder) bool {
	if time.Since(f.ended) < restAfter {
		if s.rests == nil {
			s.rests = time.AfterFunc(restAfter, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.more.Broadcast()
			})
		}
		s.rests.Reset(restAfter)
		return false
	}
	s.mu.Unlock()
	f.Rest()
	s.mu.Lock()
	return true
}

// begin gives a command its folder, and names in its environment what is there.
func (in *inside) begin(c *process.Command) error {
	f := in.folder
	deps := in.a.start.Deps
	err := f.Open(c.As)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) { // its parent directory was removed
		if _, err = makePlace(&in.s.Options, in.s.name, in.s.accounts != nil); err == nil {
			err = f.Open(c.As)
		}
	}
	if err != nil {
		if in.bare = len(deps) == 0 && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)); in.bare {
			in.s.Log.Warn("no disk space for a job's private directory; the job runs without one", "job", in.a.start.Seq, "error", err)
			return nil // a full disk keeps no job from running
		}
		return err
	}
	c.Folder, c.Notes = f.Folder, in
	c.Env = append(c.Env, f.variables()...)
	if len(deps) == 0 {
		return nil
	}
	path, err := f.Pass("deps.json", deps)
	if err != nil {
		return fmt.Errorf("write the job's dependencies (QUEUECTL_DEPS): %w", err)
	}
	c.Env = append(c.Env, "QUEUECTL_DEPS="+path)
	return nil
}

// end takes what the command has left, and has the folder removed: at once if it is empty
// and no other attempt waits for the worker.
func (in *inside) end(r *process.Result) {
	f := in.folder
	if in.bare {
		return
	}
	lived := r.Spared || r.StuckPID != 0 || r.Traced
	if f.Noted() || lived || r.Leftovers > 0 {
		in.progress.take(f.Drain())
		in.progress.flush()
	}
	if len(in.a.start.Deps) > 0 {
		f.Unpass("deps.json")
	}
	switch {
	case f.Used() || lived:
		in.value, in.fault = readValue(f, in.masks)
		owner, err := process.OwnerOf(f.Path)
		path := f.Aside(lived)
		if err == nil {
			in.s.sweeper.add(path, owner)
		}
	case r.StartedAt.Sub(f.ended) > rushGap && in.s.idle():
		f.Rest()
	}
	f.ended = r.EndedAt
}

// idle reports whether no attempt waits.
func (s *server) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) == 0
}

// readValue reads the result that an attempt has left, nil if it has left none or what
// it has left is none, which fault explains.
func readValue(f *workFolder, masks [][]byte) (value []byte, fault string) {
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

// nesting is how deep JSON nests; of what is no JSON it may be anything.
func nesting(raw []byte) (most int) {
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
			most = max(most, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return most
}

// progress reads lines of N or N text, of which the last one counts.
type progress struct {
	last  wire.Progress
	line  []byte   // that has not ended yet
	skip  bool     // it is too long
	masks [][]byte // texts that are not kept
}

// take reads what follows.
func (p *progress) take(data []byte) (news bool) {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		part := data
		if end >= 0 {
			part = data[:end]
		}
		if p.skip = p.skip || len(p.line)+len(part) > maxNotedLine; !p.skip {
			p.line = append(p.line, part...)
		}
		if end < 0 {
			return news
		}
		news = p.flush() || news
		data = data[end+1:]
	}
	return news
}

// flush takes what there is of a line for all of it.
func (p *progress) flush() (news bool) {
	percent, text, ok := parseProgress(string(output.Masked(p.line, p.masks)))
	if ok = ok && !p.skip; ok {
		p.last = wire.Progress{At: time.Now().UnixMilli(), Percent: percent, Text: text}
	}
	p.line, p.skip = p.line[:0], false
	return ok
}

// parseProgress reads N or N text, with N from 0 to 100; text is cut to what is kept.
func parseProgress(line string) (percent int64, text string, ok bool) {
	number, text, _ := strings.Cut(strings.TrimSpace(line), " ")
	percent, err := strconv.ParseInt(strings.TrimSuffix(number, "%"), 10, 64)
	if err != nil || percent < 0 || percent > 100 || number[0] == '+' {
		return 0, "", false
	}
	text = strings.TrimSpace(text)
	if len(text) > maxTold {
		text = text[:maxTold]
		for range utf8.UTFMax - 1 { // bytes of a character that was cut
			if r, size := utf8.DecodeLastRuneInString(text); r == utf8.RuneError && size == 1 {
				text = text[:len(text)-1]
			}
		}
	}
	return percent, strings.ToValidUTF8(text, "?"), true
}

// Noted is told what the command has noted, and tells the service of it in time. It is
// called again while there is something to tell, or a line has not ended.
func (in *inside) Noted(data []byte) (again bool) {
	p := &in.progress
	if !p.take(data) && len(data) == 0 && len(p.line) > 0 {
		p.flush() // it was written without an end
	}
	told := in.a.progress // which only this goroutine changes
	if p.last.At == told.At {
		return len(p.line) > 0
	}
	if p.last.At-told.At < tellEvery.Milliseconds() && time.Now().UnixMilli()-told.At < tellEvery.Milliseconds() {
		return true
	}
	in.s.mu.Lock()
	defer in.s.mu.Unlock()
	in.a.progress = p.last
	in.s.send(&wire.Telling{Lease: lease(in.a), Progress: p.last}, false)
	return len(p.line) > 0
}
