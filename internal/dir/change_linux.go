// Package dir reports when files in a directory are created, removed or replaced. It does not poll.
package dir

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// watchedEvents are the inotify events to watch. They do not include writes to files.
const watchedEvents = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// WaitForChange waits until one of the named files in dir, or dir itself, is created, removed or replaced. It
// returns an error if ctx ends first, or if it cannot watch the directory.
//
// WaitForChange calls onWatching after it has started to watch. The caller can then check the current state of the
// files: WaitForChange detects each later change. If onWatching returns false, WaitForChange returns nil immediately.
func WaitForChange(ctx context.Context, dir string, fileNames []string, onWatching func() bool) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return watchError(dir, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	if _, err := unix.InotifyAddWatch(fd, dir, watchedEvents); err != nil {
		return watchError(dir, err)
	}
	if !onWatching() {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	buf := make([]byte, 16*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := f.Read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return watchError(dir, err)
		case affectsNamedFiles(buf[:n], fileNames):
			return nil
		}
	}
}

// watchError returns the error for a directory that cannot be watched. If a limit of inotify is reached, the
// error names that limit, because the system's own text is misleading: it mentions the disk or open files.
func watchError(dir string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("cannot watch the directory %s: this account has reached the kernel's limit on watches; raise "+
			"it with the sysctl setting fs.inotify.max_user_watches (%w)", dir, err)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("cannot watch the directory %s: a limit is reached; check the sysctl setting "+
			"fs.inotify.max_user_instances and this process's limit on open files (%w)", dir, err)
	}
	return fmt.Errorf("cannot watch the directory %s: %w", dir, err)
}

// affectsNamedFiles reports whether any of the events is about one of the files in fileNames, or about the directory
// itself. It also returns true if the event queue has overflowed, because then events were lost.
func affectsNamedFiles(events []byte, fileNames []string) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name := strings.TrimRight(string(events[unix.SizeofInotifyEvent:end]), "\x00")
		if name == "" || slices.Contains(fileNames, name) {
			return true
		}
		events = events[end:]
	}
	return false
}
