package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// ownerlessStore is a store in which a file belongs to an attempt if its name does not begin with 7.
type ownerlessStore struct {
	mu sync.Mutex // guards the fields below

	callCount, failingCalls int      // number of calls until now, and how many of the first calls fail
	foundRefs               []string // files that were marked as garbage
	checkedCounts           []int    // for each call: the number of files that it has checked
}

func (o *ownerlessStore) MarkUnownedOutputs(_ context.Context, refs []string) (unowned []string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.callCount++; o.callCount <= o.failingCalls {
		return nil, queue.ErrNoSpace
	}
	o.checkedCounts = append(o.checkedCounts, len(refs))
	for _, ref := range refs {
		if ref[0] == '7' && !slices.Contains(o.foundRefs, ref) {
			unowned = append(unowned, ref)
		}
	}
	o.foundRefs = append(o.foundRefs, unowned...)
	return unowned, nil
}

// foundFiles returns the files that MarkUnownedOutputs has found, and how many files each of its calls has
// checked.
func (o *ownerlessStore) foundFiles() (foundRefs []string, checkedCounts []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.foundRefs), slices.Clone(o.checkedCounts)
}

// RunUnownedSearch searches all directories in steps, immediately and every six hours. If one directory is
// missing, or the store returns an error, it still searches the other directories.
func TestUnownedOutputsAreFound(t *testing.T) {
	some, none := t.TempDir(), filepath.Join(t.TempDir(), "none")
	file := func(name string) {
		if err := os.WriteFile(filepath.Join(some, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2*filesPerSearchStep + 9 {
		file(fmt.Sprint(i%9, "-", i))
	}
	last := t.TempDir()
	o := &ownerlessStore{failingCalls: 1}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		go RunUnownedSearch(ctx, o, func() []string { return []string{some, none, some, last} }, time.Time{},
			slog.New(slog.DiscardHandler))
		time.Sleep(time.Minute)
		synctest.Wait()
		if found, steps := o.foundFiles(); len(found) != (2*filesPerSearchStep+9+1)/9 ||
			slices.Max(steps) > filesPerSearchStep ||
			len(steps) != 3 {
			t.Errorf("the search found %d files, in steps of %v files", len(found), steps)
		}
		file("7-new")
		time.Sleep(searchInterval - 2*time.Minute)
		synctest.Wait()
		if found, _ := o.foundFiles(); slices.Contains(found, "7-new") {
			t.Error("the second search started before six hours had passed")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if found, _ := o.foundFiles(); !slices.Contains(found, "7-new") {
			t.Error("the second search did not start after six hours")
		}
		cancel()
	})
}

// searchDir ignores files that were last written before the given time, because they may belong to another
// store.
func TestOlderOutputsAreIgnored(t *testing.T) {
	dir, since := t.TempDir(), time.Now().Add(-time.Hour)
	for name, written := range map[string]time.Time{"7-1": since.Add(-time.Second), "7-2": since,
		"7-3": since.Add(time.Second)} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, written, written)); err != nil {
			t.Fatal(err)
		}
	}
	o := &ownerlessStore{}
	if n, err := searchDir(t.Context(), o, dir, since); n != 2 || err != nil || slices.Contains(o.foundRefs, "7-1") {
		t.Errorf("got %d files, %q and error %v; want the two that were written since", n, o.foundRefs, err)
	}
}
