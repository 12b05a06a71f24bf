package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Folder gives one command after another a private folder, which belongs to the account
// that the command runs as, and a FIFO beside it for what the command notes. An empty folder
// serves the next command of the same account: that nothing was done to it is told by its
// time of change, in one system call. It stands in a place where nobody but this process's
// account can make, rename or remove anything. Its methods are for one goroutine.
// See docs/decisions/0058.
type Folder struct {
	Path  string // of the folder, while it is open
	Notes string // of the FIFO

	base string
	made int // folders, or FIFOs, that had to leave their names
	as   *Identity
	open bool
	fd   int // of the folder
	pipe int // of the FIFO, for reading and writing: so it never ends; -1 if there is none
	was  unix.Stat_t
	seen bool // something was read of the FIFO since the folder was opened
}

// NewFolder makes none yet; base begins the names of all that there are.
func NewFolder(base string) *Folder { return &Folder{base: base, fd: -1, pipe: -1} }

// Open sees to it that there is an empty folder for a command of an account, nil for this
// process's own.
func (f *Folder) Open(as *Identity) (err error) {
	f.seen = false
	if !same(f.as, as) {
		f.Close()
		f.as = as
	}
	for range sides {
		if err = f.make(); !errors.Is(err, os.ErrExist) {
			break
		}
		f.made++
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("create the job's private directory: %w", err)
	}
	return nil
}

// same reports whether two accounts are one, as far as files are concerned that only their
// owner may use.
func same(a, b *Identity) bool {
	return a == b || a != nil && b != nil && a.UID == b.UID && a.GID == b.GID
}

// make makes what there is not. Until it is the account's, only this process can change it.
func (f *Folder) make() (err error) {
	if f.pipe < 0 {
		f.Notes = f.name(".progress")
		if err := unix.Mkfifo(f.Notes, 0o600); err != nil {
			return fmt.Errorf("create a FIFO: %w", err)
		}
		if f.pipe, err = unix.Open(f.Notes, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		if err := f.give(f.pipe); err != nil {
			return err
		}
	}
	if f.open {
		return nil
	}
	f.Path = f.name("")
	if err := os.Mkdir(f.Path, 0o700); err != nil {
		return err
	}
	f.open = true
	// The kernel's clock for files may stand still for milliseconds: a time that never is
	// tells of a change right after this.
	never := []unix.Timespec{{Sec: 1, Nsec: 1}, {Sec: 1, Nsec: 1}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, f.Path, never, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if f.fd, err = unix.Open(f.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if err := f.give(f.fd); err != nil {
		return err
	}
	return unix.Fstat(f.fd, &f.was)
}

// give makes what was made for the account belong to it.
func (f *Folder) give(fd int) error {
	if f.as == nil {
		return nil
	}
	return unix.Fchown(fd, int(f.as.UID), int(f.as.GID))
}

// Used reports whether there is something in the folder, or was, or the folder was removed,
// moved or changed. It is asked for by its descriptor: what may have been mounted on it, and
// never answers, is not met. Who sets its time back at once hides what is there from this, and
// shows it to the next command of the same account; another account never gets the folder.
func (f *Folder) Used() bool {
	var now unix.Stat_t
	_, _, failed := unix.RawSyscall(unix.SYS_FSTAT, uintptr(f.fd), uintptr(unsafe.Pointer(&now)), 0) // it waits for nothing
	return failed != 0 || now.Mtim != f.was.Mtim || now.Ctim != f.was.Ctim || now.Nlink != f.was.Nlink || now.Mode != f.was.Mode
}

// Aside moves the folder to another name in its place, which Remove can be called with, and
// has the next Open make one. What cannot be moved keeps its name. lived says that a process
// of the command may still use the FIFO: then that is given up too.
func (f *Folder) Aside(lived bool) (path string) {
	path = f.Path
	for try := range sides {
		aside := f.name(GoneWord) + strconv.Itoa(try)
		err := unix.Renameat2(unix.AT_FDCWD, f.Path, unix.AT_FDCWD, aside, unix.RENAME_NOREPLACE)
		if err == nil {
			path = aside
			break
		}
		if err != unix.EEXIST {
			break
		}
	}
	if path == f.Path || lived {
		f.made++
	}
	if lived {
		f.closePipe()
	}
	f.Rest()
	return path
}

// Rest removes the folder, as long as no command needs it, if it is empty.
func (f *Folder) Rest() {
	if !f.open {
		return
	}
	f.open = false
	if err := unix.Rmdir(f.Path); err != nil && err != unix.ENOENT {
		f.made++
	}
	if f.fd >= 0 {
		unix.Close(f.fd)
		f.fd = -1
	}
}

func (f *Folder) closePipe() {
	if f.pipe >= 0 {
		go unix.Close(f.pipe) // somebody may have it locked
		f.pipe = -1
	}
	os.Remove(f.Notes)
}

// Close gives back what is open, and removes it but for a folder that is not empty.
func (f *Folder) Close() {
	f.Rest()
	f.closePipe()
}

// Pass gives the command a file beside the folder, and says where.
func (f *Folder) Pass(name string, content []byte) (path string, err error) {
	path = f.base + "." + name
	os.Remove(path) // of a command before
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return "", &os.PathError{Op: "make", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	_, err = file.Write(content)
	if err == nil && f.as != nil {
		err = unix.Fchown(fd, int(f.as.UID), int(f.as.GID))
	}
	return path, errors.Join(err, file.Close())
}

// Read reads a file that the command has left in the folder, with the rights of its account,
// and one byte more than most of a larger one. One that is not there is os.ErrNotExist.
func (f *Folder) Read(name string, most int64) ([]byte, error) {
	fd, err := unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0) // a look-up that hangs outlives the folder
	if err != nil {
		return nil, err
	}
	return lookBelow(f.as, fd, func() ([]byte, error) { return readPlainAt(fd, name, most) })
}

// lookBelow looks something up below a folder, which it closes: a look-up that hangs uses it
// for longer than it is waited for.
func lookBelow[T any](as *Identity, folder int, f func() (T, error)) (found T, err error) {
	var taken atomic.Bool
	found, err = lookUp(as, func() (found T, err error) {
		if !taken.CompareAndSwap(false, true) {
			return found, errHung
		}
		defer unix.Close(folder)
		return f()
	}, nil)
	if taken.CompareAndSwap(false, true) {
		unix.Close(folder)
	}
	return found, err
}

// readPlainAt reads a regular file.
func readPlainAt(dir int, name string, most int64) ([]byte, error) {
	const flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOFOLLOW
	fd, err := unix.Openat(dir, name, flags, 0)
	switch err {
	case nil:
	case unix.ELOOP, unix.ENXIO:
		return nil, ErrNoPlainFile
	default:
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, ErrNoPlainFile
	}
	return readUpTo(f, most)
}

// Noted reports whether anything was read of the notes since the folder was opened.
func (f *Folder) Noted() bool { return f.seen }

// Drain is what has been noted and was not read. A FIFO that somebody has locked for longer than drainWithin is given up.
func (f *Folder) Drain() []byte {
	if f == nil || f.pipe < 0 {
		return nil
	}
	pipe, got := f.pipe, make(chan []byte, 1)
	go func() { got <- drainPipe(pipe) }()
	select {
	case data := <-got:
		return data
	case <-time.After(drainWithin):
		go func() {
			<-got
			unix.Close(pipe)
		}()
		f.pipe = -1
		f.made++
		os.Remove(f.Notes)
		return nil
	}
}

// drainWithin is how long a FIFO may take to be read.
const drainWithin = time.Second

// drainPipe reads what a FIFO holds. It waits while a process has it locked.
func drainPipe(pipe int) []byte {
	buf := make([]byte, 64<<10) // all that a FIFO has
	n, err := unix.Read(pipe, buf)
	if err != nil || n <= 0 {
		return nil
	}
	return buf[:n]
}

// noteFD is the FIFO for the poll, or none while a look at it is due later.
func (r *run) noteFD() int32 {
	if r.c.Folder == nil || !r.noteAt.IsZero() {
		return -1
	}
	return int32(r.c.Folder.pipe)
}

// noteDue is how long it is until a look at the notes is due, below 0 if none is.
func (r *run) noteDue() time.Duration {
	if r.noteAt.IsZero() {
		return -1
	}
	return max(0, time.Until(r.noteAt))
}

// note takes what the command has noted. The next look is some time later, so that whoever
// notes all the time has no more of this process's.
func (r *run) note(now time.Time) {
	if r.standing || r.noteAt.IsZero() || now.Before(r.noteAt) {
		return
	}
	var data []byte
	r.mayWait(func() { data = drainPipe(r.c.Folder.pipe) })
	r.c.Folder.seen = true
	if again := r.c.Notes.Noted(data); again || len(data) > 0 {
		r.noteAt = now.Add(NotesEvery)
	} else {
		r.noteAt = time.Time{}
	}
}

// readSecret reads a file with the rights of the command's account.
func (r *run) readSecret(path string) ([]byte, error) {
	raw, err := lookUp(r.c.As, func() ([]byte, error) {
		fd, err := openStdin(path)
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), path)
		defer f.Close()
		return readUpTo(f, maxSecret)
	}, nil)
	if err != nil && descriptorsOut(err) {
		return nil, &shortageError{err}
	}
	return raw, err
}
