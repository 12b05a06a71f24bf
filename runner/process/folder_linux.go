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

// Folder creates private directories and FIFOs, for one command after another. A directory and a FIFO
// next to it belong to the account that the command runs as. The command writes its notes to the FIFO.
// If a command leaves the directory unused, the next command of the same account gets the same
// directory. One system call checks that: use changes the directory's times. The parent directory must
// be one in which only the account of this process can create, rename or remove files. One goroutine at
// a time may use a Folder. See docs/decisions/0058.
type Folder struct {
	Path  string // of the directory, while it is open
	Notes string // path of the FIFO

	base string
	made int // number of directories or FIFOs that could not keep the base name
	as   *Identity
	open bool
	fd   int // descriptor of the directory
	pipe int // of the FIFO, open for reading and writing so that it never ends; -1 if there is none
	was  unix.Stat_t
	seen bool // something was read from the FIFO since the directory was opened
}

// NewFolder returns a Folder without a directory. The names of all its directories and FIFOs begin with
// base.
func NewFolder(base string) *Folder { return &Folder{base: base, fd: -1, pipe: -1} }

// Open ensures that an empty directory exists for a command of an account; nil is the account of this
// process.
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
		return fmt.Errorf("cannot create the job's private directory: %w", err)
	}
	return nil
}

// same reports whether two identities have the same rights on files that only their owner may use.
func same(a, b *Identity) bool {
	return a == b || a != nil && b != nil && a.UID == b.UID && a.GID == b.GID
}

// make creates the FIFO and the directory if they do not exist. Only this process can change them until
// it gives them to the account.
func (f *Folder) make() (err error) {
	if f.pipe < 0 {
		f.Notes = f.name(".progress")
		if err := unix.Mkfifo(f.Notes, 0o600); err != nil {
			return fmt.Errorf("cannot create a FIFO: %w", err)
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
	// The kernel's clock for files may not advance for milliseconds. A time that it never has makes a
	// change right after this one visible.
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

// give makes the account the owner of a file.
func (f *Folder) give(fd int) error {
	if f.as == nil {
		return nil
	}
	return unix.Fchown(fd, int(f.as.UID), int(f.as.GID))
}

// Used reports whether the directory was used, removed, moved or changed. It checks the descriptor, so
// a file system that a user has mounted on the directory cannot make it hang. A command that resets the
// directory's times immediately after a change can hide files from this check. Only the next command of
// the same account sees these files, because another account never gets the directory.
func (f *Folder) Used() bool {
	var now unix.Stat_t
	// Fstat never blocks.
	_, _, failed := unix.RawSyscall(unix.SYS_FSTAT, uintptr(f.fd), uintptr(unsafe.Pointer(&now)), 0)
	return failed != 0 || now.Mtim != f.was.Mtim || now.Ctim != f.was.Ctim || now.Nlink != f.was.Nlink || now.Mode != f.was.Mode
}

// Aside renames the directory, so that the next Open creates a new one. It returns the new path, for
// Remove. If the directory cannot be renamed, it keeps its name. If lived is true, a process of the
// command may still use the FIFO, so Aside gives up the FIFO as well.
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

// Rest removes the directory if it is empty, while no command needs it.
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
		go unix.Close(f.pipe) // a process may have locked the FIFO
		f.pipe = -1
	}
	os.Remove(f.Notes)
}

// Close releases all resources, and removes the FIFO and the directory unless the directory is not
// empty.
func (f *Folder) Close() {
	f.Rest()
	f.closePipe()
}

// Pass creates a file for the command next to the directory. It returns the path of the file.
func (f *Folder) Pass(name string, content []byte) (path string, err error) {
	path = f.base + "." + name
	os.Remove(path) // the file of an earlier command
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

// Read reads a file that the command left in the directory, with the rights of the command's account.
// It reads up to most+1 bytes, so that the caller can recognise a larger file. It returns
// os.ErrNotExist if the file does not exist.
func (f *Folder) Read(name string, most int64) ([]byte, error) {
	// A look-up that hangs may outlive the Folder.
	fd, err := unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return lookBelow(f.as, fd, func() ([]byte, error) { return readPlainAt(fd, name, most) })
}

// lookBelow runs f as lookUp does, and closes the descriptor folder afterwards. A look-up that hangs
// keeps the descriptor open after lookBelow returns.
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

// Noted reports whether any notes were read since the directory was opened.
func (f *Folder) Noted() bool { return f.seen }

// Drain returns the notes that were not read yet. If a process keeps the FIFO locked for longer than
// drainWithin, Drain gives up the FIFO and returns nil.
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

// drainWithin limits how long a read of the FIFO may take.
const drainWithin = time.Second

// drainPipe reads the content of a FIFO. It blocks while a process has the FIFO locked.
func drainPipe(pipe int) []byte {
	buf := make([]byte, 64<<10) // the capacity of a FIFO
	n, err := unix.Read(pipe, buf)
	if err != nil || n <= 0 {
		return nil
	}
	return buf[:n]
}

// noteFD returns the descriptor of the FIFO for the poll. It returns -1 if there is no FIFO, or if its
// next read is due later.
func (r *run) noteFD() int32 {
	if r.c.Folder == nil || !r.noteAt.IsZero() {
		return -1
	}
	return int32(r.c.Folder.pipe)
}

// noteDue returns the time until the next read of the notes. It returns a negative duration if none is
// due.
func (r *run) noteDue() time.Duration {
	if r.noteAt.IsZero() {
		return -1
	}
	return max(0, time.Until(r.noteAt))
}

// note reads the notes if that is due. The next read is due NotesEvery later, so a command that writes
// notes all the time uses little of this process's time.
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
