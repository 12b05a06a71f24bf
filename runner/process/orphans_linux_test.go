package process

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/runner/procfs"
)

// One ReapEnded reaps all orphans that have ended, even if the kernel's list of them has several pages.
func TestReapLeavesNoOrphan(t *testing.T) {
	setSubreaper(t)
	hold, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	c := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 1500 ]; do { read -r x <&3; } & i=$((i+1)); done")
	c.ExtraFiles = []*os.File{hold}
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	release.Close()
	children := func() (living, ended int) {
		for _, p := range procfs.AllProcesses() {
			if p.PPID != os.Getpid() {
				continue
			}
			if raw, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/status"); strings.Contains(string(raw), "State:\tZ") {
				ended++
			} else {
				living++
			}
		}
		return living, ended
	}
	waitUntil(t, "all have ended", func() bool { living, ended := children(); return living == 0 && ended >= 1500 })
	if more := ReapEnded(); !more {
		t.Error("Reap reports that it has reaped none")
	}
	if _, left := children(); left != 0 || !hasNoOrphans() {
		t.Errorf("%d ended orphans are left", left)
	}
	if ReapEnded() {
		t.Error("Reap reports orphans although none is left")
	}
}

// A list of children that is longer than the buffer is never cut within a pid, because a part of a
// pid may be the pid of another process. A later scan reads the whole list.
func TestLongListIsCutBetweenNumbers(t *testing.T) {
	setSubreaper(t)
	hold, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer release.Close()
	c := exec.Command("/bin/sh", "-c", "for i in 1 2 3 4 5; do { read -r x <&3; } & done")
	c.ExtraFiles = []*os.File{hold}
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	hold.Close()
	all, _ := newOrphanTable().reapAndList()
	if len(all) < 5 {
		t.Fatalf("the orphans are %v", all)
	}
	t.Cleanup(func() {
		release.Close()
		waitUntil(t, "the orphans are reaped", func() bool { ReapEnded(); return hasNoOrphans() })
	})
	for n := 1; n < 50; n++ {
		o := newOrphanTable()
		o.buffer = make([]byte, n)
		listed := []int(nil)
		for range 7 {
			listed, _ = o.reapAndList()
			for _, pid := range listed {
				if !slices.Contains(all, pid) {
					t.Fatalf("a buffer of %d bytes: the list contains %d, which is not one of %v", n, pid, all)
				}
			}
		}
		if len(listed) != len(all) {
			t.Errorf("a buffer of %d bytes: after seven scans the list is %v, want %v", n, listed, all)
		}
	}
}
