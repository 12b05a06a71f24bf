package process

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
)

// rolesVariable has this program play a role for a test.
const rolesVariable = "TEST_ROLE"

// As in a process that runs commands, the main thread starts none. A process that plays a
// role runs no test.
func init() {
	runtime.LockOSThread()
	role, rest, played := strings.Cut(os.Getenv(rolesVariable), " ")
	switch role {
	case "start":
		os.Setenv(rolesVariable, "wait ")
		startAll(append(strings.Fields(rest), "/proc/self/exe"))
	case "wait":
	}
	if played {
		os.Stdin.Read(make([]byte, 1)) // until the test ends
		os.Exit(0)
	}
}

// startAll starts programs side by side, with the words of this one, and waits for none.
func startAll(programs []string) {
	debug.SetGCPercent(-1) // a collection, and every place for a goroutine, waits for a child until it begins
	runtime.GOMAXPROCS(2 + len(programs))
	for _, program := range programs {
		go syscall.ForkExec(program, os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	}
}
