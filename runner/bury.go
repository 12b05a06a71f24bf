package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// Remains is what a dead runner has left: the results in its journal and the
// attempts it was running, of which nothing lives any more.
type Remains struct {
	Results []*wire.Result
	Running []wire.Attempt
	// SameBoot tells whether the machine has been up ever since.
	SameBoot bool
	// Stuck are the processes that outlive SIGKILL, and Unkilled the attempts of
	// Running that they belong to.
	Stuck    []wire.Left
	Unkilled map[wire.Lease]bool
}

// Recover ends what a dead runner's attempts have left alive, but for what outlives
// SIGKILL, and says what is known of them. by is a living runner that has the rights
// to do so; nil is this process.
func Recover(ctx context.Context, dir string, by *Client) (Remains, error) {
	r, cookies, err := read(dir)
	if err != nil {
		return r, err
	}
	if by == nil {
		r.SameBoot, r.Stuck, err = endTrees(dir)
	} else {
		r.SameBoot, r.Stuck, err = by.endTrees(ctx, dir) // a sandbox may show this process another boot
	}
	if err != nil {
		return r, err
	}
	for _, p := range r.Stuck {
		for _, a := range r.Running {
			if p.PGID == a.PID || cookies[p.Cookie] == a.Lease {
				r.Unkilled[a.Lease] = true
			}
		}
	}
	return r, nil
}

// Read says what is known of a dead runner's attempts, of which somebody else has ended
// what was left alive.
func Read(dir string) (Remains, error) {
	r, _, err := read(dir)
	return r, err
}

// read reads what a dead runner has noted, and the cookies of what it ran.
func read(dir string) (r Remains, cookies map[string]wire.Lease, err error) {
	r.Unkilled = map[wire.Lease]bool{}
	boot, err := process.BootID()
	if err != nil {
		return r, nil, err
	}
	noted, err := readPlain(filepath.Join(dir, bootName), 64)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return r, nil, fmt.Errorf("read the runner's boot: %w", err)
	}
	r.SameBoot = string(noted) == boot
	if r.Results, err = readJournal(dir); err != nil {
		return r, nil, err
	}
	_, _, running, err := readTable(dir)
	if err != nil {
		return r, nil, err
	}
	ended := map[wire.Lease]bool{}
	for _, result := range r.Results {
		ended[result.Lease] = true
	}
	cookies = map[string]wire.Lease{}
	for _, a := range running {
		if !ended[a.Lease] {
			r.Running = append(r.Running, a)
			cookies[fmt.Sprintf("%s.%d.%d", filepath.Base(dir), a.Seq, a.Fence)] = a.Lease
		}
	}
	return r, cookies, nil
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

// endTrees ends what a dead runner's attempts have left alive, if it is of this boot, and
// lists what outlives SIGKILL.
func endTrees(dir string) (sameBoot bool, left []wire.Left, err error) {
	r, cookies, err := read(dir)
	if err != nil || !r.SameBoot {
		return r.SameBoot, nil, err
	}
	pid, ticks, _, err := readTable(dir)
	if err != nil || pid == 0 {
		return true, nil, err
	}
	spared, err := readSpared(dir)
	if err != nil {
		return true, nil, err
	}
	d := process.Dead{
		Leader: pid, Ticks: ticks, Cookies: slices.Collect(maps.Keys(cookies)),
		Spared: func(pgid int) bool { return spared[pgid] },
	}
	for _, a := range r.Running {
		d.Trees = append(d.Trees, process.Tree{PID: int(a.PID), StartedAt: time.UnixMilli(a.StartedAt)})
	}
	for _, p := range process.EndTrees(d, patience()) {
		left = append(left, wire.Left{PID: int64(p.PID), PGID: int64(p.PGID), Cookie: p.Cookie})
	}
	return true, left, nil
}

// endTrees has the runner do it.
func (c *Client) endTrees(ctx context.Context, dir string) (sameBoot bool, left []wire.Left, err error) {
	f, err := c.ask(ctx, func(id int64) wire.Frame { return &wire.Bury{ID: id, Name: filepath.Base(dir)} })
	if err != nil {
		return false, nil, err
	}
	buried, ok := f.(*wire.Buried)
	switch {
	case !ok:
		return false, nil, errors.New("the runner ended while it dealt with what a dead one left")
	case buried.Error != "":
		return false, nil, errors.New(buried.Error)
	}
	return buried.SameBoot, buried.Left, nil
}

// Forget removes a dead runner's folder, after all it left is stored. by is a living
// runner that has the rights to do so; nil is this process.
func Forget(dir string, by *Client) error {
	if by == nil {
		return os.RemoveAll(dir)
	}
	by.Send(&wire.Forget{Name: filepath.Base(dir)})
	return nil
}

// bury ends what a dead runner has left alive, and answers.
func (s *server) bury(c *conn, f *wire.Bury) {
	s.mu.Lock()
	newest := c.epoch != 0 && c.epoch == s.epoch
	s.mu.Unlock()
	if !newest {
		return
	}
	answer := &wire.Buried{ID: f.ID}
	dir, err := s.grave(f.Name)
	if err == nil {
		answer.SameBoot, answer.Left, err = endTrees(dir)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	c.send(wire.Append(nil, answer))
}

func (s *server) forget(name string) {
	dir, err := s.grave(name)
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		s.Log.Error("a dead runner's folder stays", "error", err)
	}
}

// grave is the folder of a dead runner beside this one.
func (s *server) grave(name string) (string, error) {
	dir := filepath.Join(s.Root, name)
	if !filepath.IsLocal(name) || filepath.Base(name) != name || name[0] == '.' || !isRunner(name) {
		return "", fmt.Errorf("%q is no runner's name", name)
	}
	lives, err := Lives(dir)
	if err != nil {
		return "", err
	}
	if lives {
		return "", fmt.Errorf("the runner %s lives", name)
	}
	return dir, nil
}
