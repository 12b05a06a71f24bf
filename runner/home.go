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

// Home says where a service's runners keep their directories, and how to start a runner.
type Home struct {
	// Dir is the directory that contains the runners' directories. It belongs to the service's account,
	// or to root.
	Dir string
	// Command is the command line that starts a runner of the service's own account. Log receives the
	// runner's messages.
	Command []string
	Log     *os.File
	// Socket is the path of a socket on which systemd or the launcher starts a runner of root for each
	// connection. The service can then read the files in Dir, but change nothing. Socket is "" if the
	// service starts its runners itself.
	Socket string
	// As is the account that a runner of root switches to for good before it accepts jobs. If As is "",
	// the runner stays root and starts each job under that job's account.
	As string
	// Own reports that the processes behind Socket start runners of the service's own account, with
	// their directories in the service's own directory. This is the case if the user's systemd starts
	// them.
	Own bool
	// Tmpdir is the setting job_tmpdir for runners of the service's own account; "" is a directory
	// below Dir.
	Tmpdir string
	// Launcher is the pid of the launcher that listens on Socket, 0 if this service started none.
	Launcher int
}

// asPrefix begins the name of the directory, below Dir, that contains the directories of runners that
// have switched to an account. The rest of the name is the name of that account.
const asPrefix = "as-"

// Foreign reports whether the runners' directory belongs to another account, so that the service cannot
// change it.
func (h Home) Foreign() bool { return h.Socket != "" && !h.Own }

// Roots reports whether the runners run as root and start each job under that job's account.
func (h Home) Roots() bool { return h.Foreign() && h.As == "" }

// Root returns the directory that contains the directories of the runners for new jobs.
func (h Home) Root() string {
	if h.Socket != "" && h.As != "" {
		return filepath.Join(h.Dir, asPrefix+h.As)
	}
	return h.Dir
}

// folders returns all directories that may contain runners' directories.
func (h Home) folders() []string {
	others, _ := filepath.Glob(filepath.Join(h.Dir, asPrefix+"*")) // cannot fail, as the pattern is valid
	return append([]string{h.Dir}, others...)
}

// OfAnAccount reports whether a runner's directory belongs to a runner that has switched to an account.
// Jobs of that runner have the same account, so they may have changed anything in the directory.
// See docs/decisions/0076.
func OfAnAccount(dir string) bool {
	return strings.HasPrefix(filepath.Base(filepath.Dir(dir)), asPrefix)
}

// isRunner reports whether a name in the runners' directory is that of a runner's directory.
func isRunner(name string) bool {
	return name != outputsName && name != placesName && name != programsName && !strings.HasPrefix(name, asPrefix)
}

// Find lists the directories of all runners, living and dead. It skips the runners of an account if
// that account has made the directory around them unreadable.
func (h Home) Find() (dirs []string, err error) {
	for _, root := range h.folders() {
		entries, err := os.ReadDir(root)
		if errors.Is(err, os.ErrNotExist) || err != nil && root != h.Dir {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list runners: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && isRunner(e.Name()) {
				dirs = append(dirs, filepath.Join(root, e.Name()))
			}
		}
	}
	return dirs, nil
}

// Living lists the directories of the living runners, and of those that cannot be checked.
func (h Home) Living() (live []string, err error) {
	dirs, err := h.Find()
	for _, dir := range dirs {
		if lives, failed := Lives(dir); lives || failed != nil {
			live = append(live, dir)
		}
	}
	return live, err
}

// Outputs lists the directories that may contain output files.
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

// Words of a request for a runner. aloneWord asks for a runner that runs one isolated job. asWord and
// the name of an account ask for a runner that switches to that account. tmpdirWord comes last: the
// rest of the line is the job_tmpdir for a runner of the service's own account.
const (
	aloneWord  = "alone"
	asWord     = "as="
	tmpdirWord = "tmpdir="
)

// Words of the reply to a request for a runner. readyWord begins the line in which a new runner names
// its directory. refusedWord begins a line with the reason why no runner was started.
const (
	readyWord   = "queuectl runner "
	refusedWord = "queuectl refused "
)

// readyWithin bounds the time that a runner takes to start.
const readyWithin = 10 * time.Second

// Spawn starts a runner and returns its directory once the runner listens. With alone, the runner runs
// one isolated job only.
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
		return "", fmt.Errorf("cannot start a runner: %w", err)
	}
	return filepath.Join(h.Root(), name), nil
}

// End kills an unresponsive runner with SIGKILL. It does not end the runner's jobs, which is the task
// of Recover. If the runner runs as root, a process of root kills it, which End requests through the
// socket.
func (h Home) End(dir string) error {
	if !h.Foreign() {
		return endRunner(dir)
	}
	name, err := filepath.Rel(h.Dir, dir)
	if err == nil {
		_, err = h.say(endWord + filepath.ToSlash(name))
	}
	if err != nil {
		return fmt.Errorf("cannot end a runner: %w", err)
	}
	return nil
}

// EndAll asks all living runners to end. After the given time, it kills those that still live, together
// with their jobs. It returns the number of runners that ended.
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
			continue // ended; an error from asking it to end does not matter
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

// endWord begins the request to kill a runner. The path of the runner's directory follows, relative to
// the directory of root's runners.
const endWord = "end="

// endRunner kills the runner of a directory, unless it has ended.
func endRunner(dir string) error { return tellRunner(dir, process.End) }

// tellRunner calls tell for the process of the living runner of a directory.
func tellRunner(dir string, tell func(pid int, ticks int64, of *uint32) error) error {
	t, of, err := readLiving(dir)
	if err != nil {
		return err
	}
	if t.pid == 0 {
		return fmt.Errorf("cannot end the runner in %s: its files do not contain the pid of a process of the runner's account", dir)
	}
	return tell(t.pid, t.ticks, of)
}

// readReady reads the reply of a new runner and returns the name of its directory.
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

// lockAgain is how long to wait for a lock whose holder may be about to end.
const lockAgain = 2 * time.Second

// lockSoon calls try until it gets the lock. It returns nil if try does not get it within lockAgain.
func lockSoon(try func() (f *os.File, ok bool, err error)) (*os.File, error) {
	for deadline := time.Now().Add(lockAgain); ; time.Sleep(5 * time.Millisecond) {
		f, ok, err := try()
		if ok || err != nil || time.Now().After(deadline) {
			return f, err
		}
	}
}
