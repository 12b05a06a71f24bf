package upkeep

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// owners is a store that owns the files whose names it does not find.
type owners struct {
	asked, failing int
	found          []string
	steps          []int
}

func (o *owners) Unowned(_ context.Context, refs []string) (unowned []string, err error) {
	if o.asked++; o.asked <= o.failing {
		return nil, queue.ErrNoSpace
	}
	o.steps = append(o.steps, len(refs))
	for _, ref := range refs {
		if ref[0] == '7' && !slices.Contains(o.found, ref) {
			unowned = append(unowned, ref)
		}
	}
	o.found = append(o.found, unowned...)
	return unowned, nil
}

// All folders are looked through in steps, at once and every six hours; one that is not
// there yet, and a store that refuses, keep nothing else from it.
func TestOutputsOfNothingAreSought(t *testing.T) {
	some, none := t.TempDir(), filepath.Join(t.TempDir(), "none")
	file := func(name string) {
		if err := os.WriteFile(filepath.Join(some, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2*seekStep + 9 {
		file(fmt.Sprint(i%9, "-", i))
	}
	last := t.TempDir()
	o := &owners{failing: 1}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		go Seek(ctx, o, func() []string { return []string{some, none, some, last} }, slog.New(slog.DiscardHandler))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(o.found) != (2*seekStep+9+1)/9 || slices.Max(o.steps) > seekStep || len(o.steps) != 3 {
			t.Errorf("%d were found in steps of %v", len(o.found), o.steps)
		}
		file("7-new")
		time.Sleep(seekEvery - 2*time.Minute)
		synctest.Wait()
		if slices.Contains(o.found, "7-new") {
			t.Error("there was another look before its time")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !slices.Contains(o.found, "7-new") {
			t.Error("there was no other look")
		}
		cancel()
	})
}
