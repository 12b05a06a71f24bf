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
	"github.com/queuectl/queuectl/store"
)

// fakeOutputStore is a store in which a file belongs to an attempt if its name does not begin with 7.
type fakeOutputStore struct {
	store.OutputFiles
	mu sync.Mutex // guards the fields below

	callCount, failingCallCount int      // number of calls until now, and how many of the first calls fail
	unownedRefs                 []string // files that were marked as garbage
	checkedCountPerCall         []int    // for each call: the number of files that it has checked
}

func (o *fakeOutputStore) MarkUnownedOutputs(_ context.Context, refs []string) (unowned []string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.callCount++; o.callCount <= o.failingCallCount {
		return nil, queue.ErrNoSpace
	}
	o.checkedCountPerCall = append(o.checkedCountPerCall, len(refs))
	for _, ref := range refs {
		if ref[0] == '7' && !slices.Contains(o.unownedRefs, ref) {
			unowned = append(unowned, ref)
		}
	}
	o.unownedRefs = append(o.unownedRefs, unowned...)
	return unowned, nil
}

// recordedSearch returns the files that the fake store has marked as garbage, and how many files each call of
// MarkUnownedOutputs has checked.
func (o *fakeOutputStore) recordedSearch() (foundRefs []string, checkedCounts []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.unownedRefs), slices.Clone(o.checkedCountPerCall)
}

// RunUnownedOutputSearch searches all directories in steps, immediately and every six hours. If one directory is
// missing, or the store returns an error, it still searches the other directories.
func TestSearchMarksUnownedOutputs(t *testing.T) {
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
	o := &fakeOutputStore{failingCallCount: 1}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		go RunUnownedOutputSearch(ctx, o, func() []string { return []string{some, none, some, last} }, time.Time{},
			slog.New(slog.DiscardHandler))
		time.Sleep(time.Minute)
		synctest.Wait()
		if found, steps := o.recordedSearch(); len(found) != (2*filesPerSearchStep+9+1)/9 ||
			slices.Max(steps) > filesPerSearchStep ||
			len(steps) != 3 {
			t.Errorf("the search found %d files, in steps of %v files", len(found), steps)
		}
		file("7-new")
		time.Sleep(unownedSearchInterval - 2*time.Minute)
		synctest.Wait()
		if found, _ := o.recordedSearch(); slices.Contains(found, "7-new") {
			t.Error("the second search started before six hours had passed")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if found, _ := o.recordedSearch(); !slices.Contains(found, "7-new") {
			t.Error("the second search did not start after six hours")
		}
		cancel()
	})
}

// markUnownedOutputsInDir ignores files that were last written before the given time, because they may belong to
// another store.
func TestSearchIgnoresOlderOutputs(t *testing.T) {
	dir, since := t.TempDir(), time.Now().Add(-time.Hour)
	for name, written := range map[string]time.Time{"7-1": since.Add(-time.Second), "7-2": since,
		"7-3": since.Add(time.Second)} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, written, written)); err != nil {
			t.Fatal(err)
		}
	}
	o := &fakeOutputStore{}
	if n, err := markUnownedOutputsInDir(t.Context(), o, dir, since); n != 2 || err != nil ||
		slices.Contains(o.unownedRefs, "7-1") {
		t.Errorf("got %d files, %q and error %v; want the two that were written since", n, o.unownedRefs, err)
	}
}
