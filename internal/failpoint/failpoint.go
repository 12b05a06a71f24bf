//go:build failpoint

// Package failpoint makes the program break one of its promises on purpose, so that a test can show that it detects the
// fault. Only binaries built with the tag "failpoint" contain this code.
//
// A failpoint is a named place in the code. The environment variable QUEUECTL_FAILPOINTS is a list of
// entries, separated by commas, that say what happens at failpoints:
//
//   - NAME makes IsEnabled return true. The code at that place then does the wrong thing.
//   - NAME=kill:N ends the process with SIGKILL at the N-th call of Hit.
//   - NAME=panic:N panics at the N-th call of Hit.
//   - NAME=wait:FILE makes each call of Hit wait until FILE exists, for at most 30 s.
package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	hitCountsMu     sync.Mutex
	hitCountsByName = map[string]int{} // number of calls of Hit by name; guarded by mu
	// actionsByFailpoint maps the names in QUEUECTL_FAILPOINTS to their actions.
	actionsByFailpoint = func() map[string]string {
		m := map[string]string{}
		for entry := range strings.SplitSeq(os.Getenv("QUEUECTL_FAILPOINTS"), ",") {
			name, action, _ := strings.Cut(entry, "=")
			m[name] = action
		}
		return m
	}()
)

// IsEnabled reports whether QUEUECTL_FAILPOINTS contains the name.
func IsEnabled(name string) bool {
	_, on := actionsByFailpoint[name]
	return on && name != ""
}

// Hit executes the action that QUEUECTL_FAILPOINTS contains for the name, if there is one.
func Hit(name string) {
	action, on := actionsByFailpoint[name]
	if !on {
		return
	}
	kind, arg, _ := strings.Cut(action, ":")
	n, _ := strconv.Atoi(arg)
	hitCountsMu.Lock()
	hitCountsByName[name]++
	now := hitCountsByName[name]
	hitCountsMu.Unlock()
	switch {
	case kind == "kill" && now == n:
		if p, err := os.FindProcess(os.Getpid()); err == nil {
			p.Kill()
		}
		select {}
	case kind == "panic" && now == n:
		panic("failpoint " + name)
	case kind == "wait":
		for range 3000 {
			if _, err := os.Stat(arg); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
