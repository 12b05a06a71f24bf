//go:build failpoint

// Package failpoint makes the program break a promise on purpose. With it, a test proves that it would
// detect the broken promise. Only binaries built with the tag "failpoint" contain this code.
//
// The environment variable QUEUECTL_FAILPOINTS holds a list of entries, separated by commas. NAME
// switches a saboteur on. NAME=kill:N ends the process with SIGKILL at the N-th hit, and NAME=panic:N
// panics at the N-th hit. NAME=wait:FILE makes each hit wait until FILE exists, for at most 30 s.
package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	mu             sync.Mutex
	hits           = map[string]int{} // number of hits by name; guarded by mu
	enabledActions = func() map[string]string {
		m := map[string]string{}
		for entry := range strings.SplitSeq(os.Getenv("QUEUECTL_FAILPOINTS"), ",") {
			name, action, _ := strings.Cut(entry, "=")
			m[name] = action
		}
		return m
	}()
)

// IsEnabled reports whether a saboteur is switched on.
func IsEnabled(name string) bool {
	_, on := enabledActions[name]
	return on && name != ""
}

// Hit executes the action of a failpoint, if the failpoint is switched on.
func Hit(name string) {
	action, on := enabledActions[name]
	if !on {
		return
	}
	kind, arg, _ := strings.Cut(action, ":")
	n, _ := strconv.Atoi(arg)
	mu.Lock()
	hits[name]++
	now := hits[name]
	mu.Unlock()
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
