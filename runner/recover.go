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

// Remains is what a dead runner has left: the results in its journal and the
// attempts it was running, of which nothing lives any more.
type Remains struct {
	Results []*wire.Result
	Running []wire.Attempt
	// SameBoot tells whether the machine has been up ever since. Where nothing says so
	// it may have been.
	SameBoot bool
	// Damaged says that the runner's notes are not whole: it may have begun attempts
	// that no note tells of. A power cut may damage them too.
	Damaged bool
	// Alive are the attempts, of those that the service named, that had processes.
	Alive []wire.Lease
	// Stuck are the processes that outlive SIGKILL, and Unkilled the attempts of
	// Running that they belong to.
	Stuck    []wire.Left
	Unkilled map[wire.Lease]bool
}

// Recover ends what the attempts of a dead runner have left alive, but for what outlives
// SIGKILL, and says what is known of them. leased are the attempts that the service has not
// settled and that may have been this runner's; sent are those that no other runner can
// have: their processes are found even if the folder is damaged, or, with dir "", gone. by
// is a living runner that has the rights to do so; nil is this process.
func Recover(ctx context.Context, dir string, leased, sent []wire.Attempt, by *Client) (Remains, error) {
	r, cookies, err := read(dir, leased)
	if err != nil {
		return r, err
	}
	var ended ended
	if by == nil {
		ended, err = endTrees(dir, sent)
	} else {
		ended, err = by.endTrees(ctx, dir, sent) // a sandbox may show this process another boot
	}
	if err != nil {
		return r, err
	}
	r.SameBoot, r.Stuck, r.Alive = ended.sameBoot, ended.left, ended.alive
	for _, p := range r.Stuck {
		for _, a := range r.Running {
			if p.PGID == a.PID || cookies[p.Cookie] == a.Lease {
				r.Unkilled[a.Lease] = true
			}
		}
	}
	return r, nil
}

// Kept lists what the runner of a folder has of a service, without a change: what it runs, and of which it knows the end while
// no service has taken that. Of a dead one also ends may be listed that were taken.
func Kept(dir string) (list []wire.Lease, lives bool, err error) {
	if lives, err = Lives(dir); err != nil || lives {
		if err == nil {
			list, err = peek(dir)
		}
		return list, lives, err
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

// Read says what is known of a dead runner's attempts, of which somebody else has ended
// what was left alive.
func Read(dir string, leased []wire.Attempt) (Remains, error) {
	r, _, err := read(dir, leased)
	return r, err
}

// read reads what a dead runner has noted, and the cookies of what it ran.
func read(dir string, leased []wire.Attempt) (r Remains, cookies map[string]wire.Lease, err error) {
	r.Unkilled, r.SameBoot = map[wire.Lease]bool{}, true
	if dir == "" {
		return r, nil, nil
	}
	noted, err := bootOf(dir)
	if err != nil {
		return r, nil, err
	}
	boot, err := process.BootID()
	if err != nil {
		return r, nil, err
	}
	r.SameBoot = noted == "" || noted == boot
	wanted := map[wire.Lease]bool{}
	for _, a := range leased {
		wanted[a.Lease] = true
	}
	t, err := readTable(dir)
	if err != nil {
		return r, nil, err
	}
	whole := false
	if r.Results, whole, err = readJournal(dir, t.journal, func(l wire.Lease) bool { return wanted[l] }); err != nil {
		return r, nil, err
	}
	r.Damaged = noted == "" || !t.whole || !whole || !r.SameBoot
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

// bootOf is the boot that a runner noted, "" if its note is gone, or damaged.
func bootOf(dir string) (string, error) {
	boot, err := readNote(filepath.Join(dir, bootName), 64)
	if err != nil {
		return "", fmt.Errorf("read the runner's boot ID: %w", err)
	}
	return boot, nil
}

// readNote returns the text of a note of at most most bytes, "" if the note is missing or damaged.
func readNote(path string, most int64) (string, error) {
	noted, err := readPlain(path, most)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	text := string(noted[:max(0, len(noted)-noteSum)])
	if string(noted) != NoteOf(text) {
		return "", nil
	}
	return text, nil
}

// noteSum is how long the checksum of a note is.
const noteSum = 8

// NoteOf returns a text as a runner stores it in its directory: followed by its checksum.
func NoteOf(text string) string {
	return fmt.Sprintf("%s%0*x", text, noteSum, crc32.ChecksumIEEE([]byte(text)))
}

// readPlain reads a file of a runner's folder, and no more of it than that has.
func readPlain(path string, most int64) ([]byte, error) {
	f, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// ended says what came of ending the trees of a dead runner.
type ended struct {
	sameBoot bool
	left     []wire.Left  // what outlives SIGKILL
	alive    []wire.Lease // of the leased ones, those that had processes
}

// endTrees ends what a dead runner's attempts have left alive, and those of leased, unless
// it is of an earlier boot, or its folder is a copy: then what it names is of the folder
// that was copied, and may live there. Of an account's folder no process but its own is
// ended.
// See docs/decisions/0031.
func endTrees(dir string, leased []wire.Attempt) (e ended, err error) {
	d := process.Dead{}
	running := leased
	if dir != "" {
		r, _, err := read(dir, nil)
		if err == nil {
			d.Of, err = accountOf(dir)
		}
		if err != nil || !r.SameBoot {
			return ended{sameBoot: r.SameBoot}, err
		}
		t, err := readTable(dir)
		if err != nil {
			return ended{sameBoot: true}, err
		}
		if t.whole && t.pid == 0 {
			return ended{sameBoot: true}, nil
		}
		spared, err := readSpared(dir)
		if err != nil {
			return ended{sameBoot: true}, err
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
	met, left := process.EndTrees(d, patience())
	e.sameBoot = true
	for _, a := range leased {
		if slices.ContainsFunc(met, func(p process.Left) bool { return isOf(p, a) }) {
			e.alive = append(e.alive, a.Lease)
		}
	}
	for _, p := range left {
		e.left = append(e.left, wire.Left{PID: int64(p.PID), PGID: int64(p.PGID), Cookie: p.Cookie})
	}
	return e, nil
}

// isOf reports whether a process is an attempt's, by its cookie or its process group.
func isOf(p process.Left, a wire.Attempt) bool {
	return strings.HasSuffix(p.Cookie, cookieOf("", a.Lease)) || a.PID != 0 && int64(p.PGID) == a.PID
}

// endTrees has the runner do it.
func (c *Client) endTrees(ctx context.Context, dir string, sent []wire.Attempt) (ended, error) {
	name := ""
	if dir != "" {
		name = filepath.Base(dir)
	}
	f, err := c.ask(ctx, nil, func(id int64) wire.Frame { return &wire.Recover{ID: id, Name: name, Attempts: sent} })
	if err != nil {
		return ended{}, err
	}
	r, ok := f.(*wire.Recovered)
	switch {
	case !ok:
		return ended{}, errors.New("the runner ended while it cleaned up after a dead runner")
	case r.Error != "":
		return ended{}, errors.New(r.Error)
	}
	return ended{r.SameBoot, r.Left, r.Alive}, nil
}

// Forget removes a dead runner's folder, after all it left is stored. by is a living
// runner that has the rights to do so; nil is this process.
func Forget(dir string, by *Client) error {
	if by == nil {
		return removeRunner(dir)
	}
	by.Send(&wire.Forget{Name: filepath.Base(dir)})
	return nil
}

// recover ends what dead runners' attempts have left alive, and answers.
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
		var e ended
		e, err = endTrees(dir, f.Attempts)
		answer.SameBoot, answer.Left, answer.Alive = e.sameBoot, e.left, e.alive
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

// deadDir is the folder of a dead runner beside this one.
func (s *server) deadDir(name string) (string, error) {
	dir := filepath.Join(s.Root, name)
	if !filepath.IsLocal(name) || filepath.Base(name) != name || name[0] == '.' || !isRunner(name) {
		return "", fmt.Errorf("%q is not a runner name", name)
	}
	lives, err := Lives(dir)
	if err != nil {
		return "", err
	}
	if lives {
		return "", fmt.Errorf("the runner %s is still running", name)
	}
	return dir, nil
}
