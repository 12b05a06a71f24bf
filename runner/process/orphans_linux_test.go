package process

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/runner/procfs"
)

// One call of ReapEndedOrphans reaps all orphans that have ended, even if the kernel's list of children has
// several pages.
func TestReapEndedOrphansReapsAll(t *testing.T) {
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
	if more := ReapEndedOrphans(); !more {
		t.Error("ReapEnded reports that it has reaped none")
	}
	if _, left := children(); left != 0 || !hasNoOrphans() {
		t.Errorf("%d ended orphans are left", left)
	}
	if ReapEndedOrphans() {
		t.Error("ReapEnded reports orphans although none is left")
	}
}
