package process

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// One Reap leaves no orphan that has ended, also where the kernel needs several pages to list them.
func TestReapLeavesNoOrphan(t *testing.T) {
	adopt(t)
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
		for _, p := range all() {
			if p.ppid != os.Getpid() {
				continue
			}
			if raw, _ := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/status"); strings.Contains(string(raw), "State:\tZ") {
				ended++
			} else {
				living++
			}
		}
		return living, ended
	}
	until(t, "all have ended", func() bool { living, ended := children(); return living == 0 && ended >= 1500 })
	if more := Reap(); !more {
		t.Error("Reap reports that it has reaped none")
	}
	if _, left := children(); left != 0 || !noOrphans() {
		t.Errorf("%d orphans that have ended are left", left)
	}
	if Reap() {
		t.Error("Reap reports more where none is left")
	}
}
