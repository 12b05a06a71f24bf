package runner

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/queuectl/queuectl/runner/process"
)

// Home is where a service's runners live, and how it gets one.
type Home struct {
	// Dir is the runners' folder: the service's own, or root's.
	Dir string
	// Command starts a runner of the service's own account, with its messages in Log.
	Command []string
	Log     *os.File
	// Socket, if not "", starts a runner of root's whenever somebody connects to it.
	// The service may read what is in Dir then, and change nothing.
	Socket string
	// As is the account that a runner of root's becomes for good before it is spoken
	// to; "" is none: it gives each job its own.
	As string
	// Own says that the socket starts runners of the service's own account, in the
	// service's own folder: it is a user's systemd that does.
	Own bool
	// Tmpdir is the setting job_tmpdir for runners of the service's own account; "" is a directory below Dir.
	Tmpdir string
	// Launcher is the pid of the launcher that listens on Socket, 0 if this service started none.
	Launcher int
}

// asPrefix begins the name of the folder, below Dir, of runners that have become an
// account.
const asPrefix = "as-"

// Foreign reports whether the runners' folder is not the service's to change.
func (h Home) Foreign() bool { return h.Socket != "" && !h.Own }

// Roots reports whether the runners are root's, and give each job an account.
func (h Home) Roots() bool { return h.Foreign() && h.As == "" }

// Root is the folder of the runners that new jobs go to.
func (h Home) Root() string {
	if h.Socket != "" && h.As != "" {
		return filepath.Join(h.Dir, asPrefix+h.As)
	}
	return h.Dir
}

// folders are all folders that may have runners.
func (h Home) folders() []string {
	others, _ := filepath.Glob(filepath.Join(h.Dir, asPrefix+"*")) // the pattern is right
	return append([]string{h.Dir}, others...)
}

// OfAnAccount reports whether a runner's folder is below that of runners that have become
// an account: what they run may have done anything to it.
// See docs/decisions/0076.
func OfAnAccount(dir string) bool {
	return strings.HasPrefix(filepath.Base(filepath.Dir(dir)), asPrefix)
}

// isRunner reports whether a folder below that of the runners is a runner's.
func isRunner(name string) bool {
	return name != outputsName && name != placesName && name != programsName && !strings.HasPrefix(name, asPrefix)
}

// Find lists the folders of runners, living and dead ones. An account that has made the
// folder around its runners unreadable hides them all; a runner's own that it has is listed.
func (h Home) Find() (dirs []string, err error) {
	for _, root := range h.folders() {
		entries, err := os.ReadDir(root)
		if errors.Is(err, os.ErrNotExist) || err != nil && root != h.Dir {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list runners: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && isRunner(e.Name()) {
				dirs = append(dirs, filepath.Join(root, e.Name()))
			}
		}
	}
	return dirs, nil
}

// Living lists the folders of runners that live.
func (h Home) Living() (live []string, err error) {
	dirs, err := h.Find()
	for _, dir := range dirs {
		if lives, failed := Lives(dir); lives || failed != nil {
			live = append(live, dir)
		}
	}
	return live, err
}

// Outputs lists the folders that may have output files.
func (h Home) Outputs() (list []string) {
	for _, root := range h.folders() {
		list = append(list, filepath.Join(root, outputsName))
	}
	return list
}

// Output opens the file that an OutputRef names.
func (h Home) Output(ref string) (*os.File, error) {
	if !ValidRef(ref) {
		return nil, fmt.Errorf("%q is not the name of an output file", ref)
	}
	for _, root := range h.folders() {
		f, err := openPlain(OutputPath(root, ref))
		if !errors.Is(err, os.ErrNotExist) {
			return f, err
		}
	}
	return nil, &os.PathError{Op: "open", Path: OutputPath(h.Dir, ref), Err: os.ErrNotExist}
}

// aloneWord asks for a runner that runs one job alone, and asWord, with a name behind it,
// for one that becomes an account. tmpdirWord begins the job_tmpdir of a
// runner of the service's own account: the rest of the line.
const (
	aloneWord  = "alone"
	asWord     = "as="
	tmpdirWord = "tmpdir="
)

// readyWord begins the line by which a new runner names its folder, and refusedWord the
// one by which it says why there is none.
const (
	readyWord   = "queuectl runner "
	refusedWord = "queuectl refused "
)

// readyWithin bounds the start of a runner.
const readyWithin = 10 * time.Second

// Spawn starts a runner, which runs one job only if it is to be alone, and returns its
// folder once it listens.
func (h Home) Spawn(alone bool) (dir string, err error) {
	name := ""
	if h.Socket != "" {
		var words []string
		if alone {
			words = append(words, aloneWord)
		}
		if h.As != "" {
			words = append(words, asWord+h.As)
		}
		if h.Tmpdir != "" {
			words = append(words, tmpdirWord+h.Tmpdir)
		}
		name, err = h.say(words...)
	} else {
		name, err = h.spawn(alone)
	}
	if err != nil {
		return "", fmt.Errorf("start a runner: %w", err)
	}
	return filepath.Join(h.Root(), name), nil
}

// End ends the runner of a folder that does not answer, by SIGKILL: what it runs is for
// the one who recovers it. Root's runner is ended by a process of root's, which is asked
// for by the socket.
func (h Home) End(dir string) error {
	if !h.Foreign() {
		return endRunner(dir)
	}
	name, err := filepath.Rel(h.Dir, dir)
	if err == nil {
		_, err = h.say(endWord + filepath.ToSlash(name))
	}
	if err != nil {
		return fmt.Errorf("end a runner: %w", err)
	}
	return nil
}

// EndAll asks the runners that live to end, and ends those that have not after a while,
// with all that they run. It says how many there were.
func (h Home) EndAll(within time.Duration) (ended int, err error) {
	live, err := h.Living()
	told := map[string]error{}
	for _, dir := range live {
		told[dir] = tellRunner(dir, process.AskToEnd)
	}
	deadline := time.Now().Add(within)
	for _, dir := range live {
		for lives := true; lives && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if lives, _ = Lives(dir); !lives {
				ended++
			}
		}
		if lives, _ := Lives(dir); !lives {
			continue // also if it was ending by itself, and could be told nothing
		}
		err = errors.Join(err, told[dir])
		if failed := endRunner(dir); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		ended++
		_, failed := endTrees(dir, nil)
		err = errors.Join(err, failed)
	}
	return ended, err
}

// endWord begins what is asked for when a runner is to be ended; its folder below that of
// root's runners follows.
const endWord = "end="

// endRunner ends the runner of a folder, unless it has ended.
func endRunner(dir string) error { return tellRunner(dir, process.End) }

// tellRunner has the process of a runner told something.
func tellRunner(dir string, tell func(pid int, ticks int64, of *uint32) error) error {
	t, of, err := readLiving(dir)
	if err != nil {
		return err
	}
	if t.pid == 0 {
		return fmt.Errorf("cannot end the runner in %s: the files there do not name a process of the runner's account", dir)
	}
	return tell(t.pid, t.ticks, of)
}

// readReady reads the line by which a new runner names its folder.
func readReady(from io.Reader) (name string, err error) {
	line, err := bufio.NewReader(io.LimitReader(from, 4096)).ReadString('\n')
	line = strings.TrimSuffix(line, "\n")
	if why, refused := strings.CutPrefix(line, refusedWord); refused {
		return "", errors.New(why)
	}
	name, ok := strings.CutPrefix(line, readyWord)
	if err != nil {
		return "", fmt.Errorf("the runner replied %q, then ended or hung (%w); see the service's log", line, err)
	}
	if !ok || filepath.Base(name) != name {
		return "", fmt.Errorf("unexpected reply %q from the runner; see the service's log", line)
	}
	return name, nil
}

// lockAgain is how long a lock is waited for that a service or launcher has which just ends.
const lockAgain = 2 * time.Second

// lockSoon tries until it has a lock, or nil after lockAgain.
func lockSoon(try func() (f *os.File, ok bool, err error)) (*os.File, error) {
	for deadline := time.Now().Add(lockAgain); ; time.Sleep(5 * time.Millisecond) {
		f, ok, err := try()
		if ok || err != nil || time.Now().After(deadline) {
			return f, err
		}
	}
}
