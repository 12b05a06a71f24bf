package testrig

import (
	"fmt"
)

// Reader returns the pid of the process that reads the stuck file.
func (d *Disk) Reader() (pid int) {
	d.Helper()
	for _, line := range ProcessesWithArg("cat\x00" + d.Path("fuse/stuck")) {
		fmt.Sscan(line, &pid)
	}
	if pid == 0 || !IsAlive(pid) {
		d.Fatal("nothing outlives SIGKILL")
	}
	return pid
}
