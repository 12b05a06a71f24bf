package runner

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// Remains describes what a dead runner left: the results in its journal, and the attempts that were
// running when it died. The processes of these attempts have ended, except those in Stuck.
type Remains struct {
	Results []*wire.Result
	Running []wire.Attempt
	// SameBoot reports whether the machine has not rebooted since the runner started. It is also true
	// if the runner's boot ID is missing.
	SameBoot bool
	// Damaged reports that the runner's files are incomplete, so the runner may have started attempts
	// that they do not show. It is true after a reboot too, since a power cut may have damaged the
	// files.
	Damaged bool
	// Alive lists the attempts that the service named and that still had processes.
	Alive []wire.Lease
	// Stuck lists the processes that outlive SIGKILL. Unkilled holds the attempts in Running that these
	// processes belong to.
	Stuck    []wire.Left
	Unkilled map[wire.Lease]bool
}

// Recover ends the remaining processes of a dead runner's attempts and returns what the runner's files
// say about the attempts. Processes that outlive SIGKILL remain. leased lists the attempts that the
// service has not settled and that this runner may have had. sent lists the attempts that no other
// runner can have: Recover finds their processes even if the runner's directory is damaged, or gone
// (dir is ""). helper is a living runner that has the rights to end the processes; if it is nil, this
// process ends them.
func Recover(ctx context.Context, dir string, leased, sent []wire.Attempt, helper *Client) (Remains, error) {
	r, cookies, err := readFiles(dir, leased)
	if err != nil {
		return r, err
	}
	var ended endResult
	if helper == nil {
		ended, err = endTrees(dir, sent)
	} else {
		// Let the runner compare the boot IDs, because a sandbox may show another boot ID to this
		// process.
		ended, err = helper.endTrees(ctx, dir, sent)
	}
	if err != nil {
		return r, err
	}
	r.SameBoot, r.Stuck, r.Alive = ended.sameBoot, ended.stuck, ended.alive
	for _, p := range r.Stuck {
		for _, a := range r.Running {
			if p.PGID == a.PID || cookies[p.Cookie] == a.Lease {
				r.Unkilled[a.Lease] = true
			}
		}
	}
	return r, nil
}

// Kept lists the running attempts of the runner in dir, and its ended attempts whose results no service
// has acknowledged. It changes nothing. For a dead runner, the list may also contain attempts whose
// results were acknowledged. alive reports whether the runner is alive.
func Kept(dir string) (list []wire.Lease, alive bool, err error) {
	if alive, err = Lives(dir); err != nil || alive {
		if err == nil {
			list, err = listAttempts(dir)
		}
		return list, alive, err
	}
	t, err := readTable(dir)
	if err != nil {
		return nil, false, err
	}
	for _, a := range t.running {
		list = append(list, a.Lease)
	}
	results, _, err := readJournal(dir, t.journal, func(wire.Lease) bool { return true })
	for i := range results {
		list = append(list, results[i].Lease)
	}
	return list, false, err
}

// Read returns what a dead runner's files say about its attempts. Unlike Recover, it ends no processes:
// another process has already ended them.
func Read(dir string, leased []wire.Attempt) (Remains, error) {
	r, _, err := readFiles(dir, leased)
	return r, err
}

// readFiles reads a dead runner's files. It also returns the cookies of the attempts that were running.
func readFiles(dir string, leased []wire.Attempt) (r Remains, cookies map[string]wire.Lease, err error) {
	r.Unkilled, r.SameBoot = map[wire.Lease]bool{}, true
	if dir == "" {
		return r, nil, nil
	}
	storedBoot, err := bootOf(dir)
	if err != nil {
		return r, nil, err
	}
	boot, err := process.BootID()
	if err != nil {
		return r, nil, err
	}
	r.SameBoot = storedBoot == "" || storedBoot == boot
	wanted := map[wire.Lease]bool{}
	for _, a := range leased {
		wanted[a.Lease] = true
	}
	t, err := readTable(dir)
	if err != nil {
		return r, nil, err
	}
	complete := false
	if r.Results, complete, err = readJournal(dir, t.journal, func(l wire.Lease) bool { return wanted[l] }); err != nil {
		return r, nil, err
	}
	r.Damaged = storedBoot == "" || !t.intact || !complete || !r.SameBoot
	ended := map[wire.Lease]bool{}
	for _, result := range r.Results {
		ended[result.Lease] = true
	}
	cookies = map[string]wire.Lease{}
	for _, a := range t.running {
		if !ended[a.Lease] {
			r.Running = append(r.Running, a)
			cookies[cookieOf(filepath.Base(dir), a.Lease)] = a.Lease
		}
	}
	return r, cookies, nil
}

// bootOf returns the boot ID that a runner stored, or "" if it is missing or damaged.
func bootOf(dir string) (string, error) {
	boot, err := readNote(filepath.Join(dir, bootName), 64)
	if err != nil {
		return "", fmt.Errorf("cannot read the runner's boot ID: %w", err)
	}
	return boot, nil
}

// readNote returns the text of a note of at most maxBytes bytes, or "" if the note is missing or
// damaged.
func readNote(path string, maxBytes int64) (string, error) {
	raw, err := readPlain(path, maxBytes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	text := string(raw[:max(0, len(raw)-noteSumDigits)])
	if string(raw) != NoteOf(text) {
		return "", nil
	}
	return text, nil
}

// noteSumDigits is the length of a note's checksum, in hexadecimal digits.
const noteSumDigits = 8

// NoteOf returns a text as a runner stores it in its directory: followed by its checksum.
func NoteOf(text string) string {
	return fmt.Sprintf("%s%0*x", text, noteSumDigits, crc32.ChecksumIEEE([]byte(text)))
}

// readPlain reads at most maxBytes bytes of a regular file in a runner's directory.
func readPlain(path string, maxBytes int64) ([]byte, error) {
	f, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBytes))
}

// endResult is the outcome of ending the process trees of a dead runner.
type endResult struct {
	sameBoot bool
	stuck    []wire.Left  // processes that outlive SIGKILL
	alive    []wire.Lease // those of the attempts passed to endTrees that still had processes
}

// endTrees ends the remaining processes of a dead runner's attempts, and those of the attempts in
// leased. It ends nothing if the runner is of an earlier boot, or if its directory is a copy: the
// processes that a copy names belong to the original directory, whose runner may be alive. If the
// directory belongs to an account, endTrees ends only processes of that account.
// See docs/decisions/0031.
func endTrees(dir string, leased []wire.Attempt) (e endResult, err error) {
	d := process.DeadRunner{}
	running := leased
	if dir != "" {
		r, _, err := readFiles(dir, nil)
		if err == nil {
			d.Owner, err = accountOf(dir)
		}
		if err != nil || !r.SameBoot {
			return endResult{sameBoot: r.SameBoot}, err
		}
		t, err := readTable(dir)
		if err != nil {
			return endResult{sameBoot: true}, err
		}
		if t.intact && t.pid == 0 {
			return endResult{sameBoot: true}, nil
		}
		spared, err := readSpared(dir)
		if err != nil {
			return endResult{sameBoot: true}, err
		}
		d.Leader, d.Ticks, d.Spared = t.pid, t.ticks, func(pgid int) bool { return spared[pgid] }
		running = slices.Concat(r.Running, leased)
	}
	for _, a := range running {
		if dir != "" {
			d.Cookies = append(d.Cookies, cookieOf(filepath.Base(dir), a.Lease))
		}
		tree := process.Tree{PID: int(a.PID), Seq: a.Seq, Fence: a.Fence}
		if a.StartedAt != 0 {
			tree.StartedAt = time.UnixMilli(a.StartedAt)
		}
		d.Trees = append(d.Trees, tree)
	}
	found, stuck := process.EndTrees(d, patience())
	e.sameBoot = true
	for _, a := range leased {
		if slices.ContainsFunc(found, func(p process.Survivor) bool { return belongsTo(p, a) }) {
			e.alive = append(e.alive, a.Lease)
		}
	}
	for _, p := range stuck {
		e.stuck = append(e.stuck, wire.Left{PID: int64(p.PID), PGID: int64(p.PGID), Cookie: p.Cookie})
	}
	return e, nil
}

// belongsTo reports whether a process belongs to an attempt, by its cookie or its process group.
func belongsTo(p process.Survivor, a wire.Attempt) bool {
	return strings.HasSuffix(p.Cookie, cookieOf("", a.Lease)) || a.PID != 0 && int64(p.PGID) == a.PID
}

// endTrees makes the connected runner call its own endTrees, because that runner has the rights to end
// the processes.
func (c *Client) endTrees(ctx context.Context, dir string, sent []wire.Attempt) (endResult, error) {
	name := ""
	if dir != "" {
		name = filepath.Base(dir)
	}
	f, err := c.request(ctx, nil, func(id int64) wire.Frame { return &wire.Recover{ID: id, Name: name, Attempts: sent} })
	if err != nil {
		return endResult{}, err
	}
	r, ok := f.(*wire.Recovered)
	switch {
	case !ok:
		return endResult{}, errors.New("the runner ended while it cleaned up after a dead runner")
	case r.Error != "":
		return endResult{}, errors.New(r.Error)
	}
	return endResult{r.SameBoot, r.Left, r.Alive}, nil
}

// Forget removes a dead runner's directory, after everything in it has been stored. helper is a living
// runner that has the rights to do so; if it is nil, this process removes the directory.
func Forget(dir string, helper *Client) error {
	if helper == nil {
		return removeRunner(dir)
	}
	helper.Send(&wire.Forget{Name: filepath.Base(dir)})
	return nil
}

// recover answers a RECOVER request: it ends the remaining processes of dead runners' attempts.
func (s *server) recover(c *conn, f *wire.Recover) {
	s.mu.Lock()
	newest := c.epoch != 0 && c.epoch == s.epoch
	s.mu.Unlock()
	if !newest {
		return
	}
	answer := &wire.Recovered{ID: f.ID}
	dir, err := "", error(nil)
	if f.Name != "" {
		dir, err = s.deadDir(f.Name)
	}
	if err == nil {
		var e endResult
		e, err = endTrees(dir, f.Attempts)
		answer.SameBoot, answer.Left, answer.Alive = e.sameBoot, e.stuck, e.alive
	}
	if err != nil {
		answer.Error = err.Error()
	}
	c.send(wire.Append(nil, answer))
}

func (s *server) forget(name string) {
	dir, err := s.deadDir(name)
	if err == nil {
		err = removeRunner(dir)
	}
	if err != nil {
		s.Log.Error("could not remove a dead runner's directory", "error", err)
	}
}

// deadDir returns the directory of a dead runner next to this runner's directory. It returns an error
// if the name is invalid or the runner is alive.
func (s *server) deadDir(name string) (string, error) {
	dir := filepath.Join(s.Root, name)
	if !filepath.IsLocal(name) || filepath.Base(name) != name || name[0] == '.' || !isRunner(name) {
		return "", fmt.Errorf("%q is not a runner name", name)
	}
	alive, err := Lives(dir)
	if err != nil {
		return "", err
	}
	if alive {
		return "", fmt.Errorf("the runner %s is still running", name)
	}
	return dir, nil
}
