package privdir

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/runas"
)

// Dir creates a private directory and a FIFO next to it, for one command after another. The directory and the FIFO
// belong to the account that the command runs as. The command writes progress notes to the FIFO. The caller must ensure
// that no other account can create, rename or remove files in the parent directory. One goroutine at a time may use a
// Dir.
//
// If a command has not used its directory, the next command of the same account gets the same directory. Any
// use changes the directory's times, so one system call shows whether it was used. See docs/decisions/0058.
type Dir struct {
	Path         string // path of the directory while it is open
	ProgressPath string // path of the FIFO

	pathPrefix string // prefix of the paths of all directories and FIFOs
	nameSuffix int    // number in the current names, or 0; grows if an old directory or FIFO still has the name
	owner      *runas.Identity
	isOpen     bool
	dirFD      int // descriptor of the directory
	// fifoFD is the descriptor of the FIFO, or -1 without a FIFO. It is open for reading and writing. So a
	// read does not return end of file when no command has the FIFO open.
	fifoFD          int
	statBeforeUse   unix.Stat_t // state of the unused directory; WasUsed compares the current state with it
	hasReadProgress bool        // progress notes were read from the FIFO since the last Open
}

// New returns a Dir that has no directory yet. The paths of all its directories and FIFOs begin with pathPrefix.
func New(pathPrefix string) *Dir { return &Dir{pathPrefix: pathPrefix, dirFD: -1, fifoFD: -1} }

// Open ensures that an empty directory exists for a command. owner is the account that the command runs as;
// nil means the account of this process.
func (d *Dir) Open(owner *runas.Identity) (err error) {
	d.hasReadProgress = false
	if !sameFileRights(d.owner, owner) {
		d.Close()
		d.owner = owner
	}
	for range maxDirNameTries {
		if err = d.create(); !errors.Is(err, os.ErrExist) {
			break
		}
		d.nameSuffix++
	}
	if err != nil {
		d.Close()
		return fmt.Errorf("cannot create the job's private directory: %w", err)
	}
	return nil
}

// sameFileRights reports whether two identities have the same user and group. They then have the same rights on files
// that only their owner may use.
func sameFileRights(a, b *runas.Identity) bool {
	return a == b || a != nil && b != nil && a.UID == b.UID && a.GID == b.GID
}

// create creates the FIFO and the directory, unless they exist. At first, the FIFO and the directory belong to the
// account of this process, so the command's account cannot interfere. At the end, create gives them to the command's
// account.
func (d *Dir) create() (err error) {
	if d.fifoFD < 0 {
		d.ProgressPath = d.pathWithSuffix(".progress")
		if err := unix.Mkfifo(d.ProgressPath, 0o600); err != nil {
			return fmt.Errorf("cannot create a FIFO: %w", err)
		}
		const flags = unix.O_RDWR | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if d.fifoFD, err = unix.Open(d.ProgressPath, flags, 0); err == nil {
			err = d.chownToOwner(d.fifoFD)
		}
		if err != nil {
			return err
		}
	}
	if d.isOpen {
		return nil
	}
	d.Path = d.pathWithSuffix("")
	if err := os.Mkdir(d.Path, 0o700); err != nil {
		return err
	}
	d.isOpen = true
	// Set the directory's times to a value that the kernel's clock never has. The kernel's clock for files may not advance
	// for milliseconds. Without this value, the directory could be changed within that time without a change of its
	// times, and WasUsed would not notice the change.
	markTime := []unix.Timespec{{Sec: 1, Nsec: 1}, {Sec: 1, Nsec: 1}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, d.Path, markTime, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if d.dirFD, err = unix.Open(d.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	return errors.Join(d.chownToOwner(d.dirFD), unix.Fstat(d.dirFD, &d.statBeforeUse))
}

// chownToOwner makes the account the owner of a file.
func (d *Dir) chownToOwner(fd int) error {
	if d.owner == nil {
		return nil
	}
	return unix.Fchown(fd, int(d.owner.UID), int(d.owner.GID))
}

// WasUsed reports whether the directory was changed, moved or removed. It checks the open descriptor, because a check
// of the path could hang in a file system that the user has mounted there. A command can hide its files from WasUsed by
// resetting the directory's times. This is harmless: only a later command of the same account can then see these files.
func (d *Dir) WasUsed() bool {
	var currentStat unix.Stat_t
	err := unix.Fstat(d.dirFD, &currentStat)
	return err != nil || currentStat.Mtim != d.statBeforeUse.Mtim || currentStat.Ctim != d.statBeforeUse.Ctim ||
		currentStat.Nlink != d.statBeforeUse.Nlink || currentStat.Mode != d.statBeforeUse.Mode
}

// renameToNewPath renames a directory. It returns an error if newPath exists.
func renameToNewPath(path, newPath string) error {
	return unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, newPath, unix.RENAME_NOREPLACE)
}

// closeDir closes the descriptor of the directory.
func (d *Dir) closeDir() {
	if d.dirFD >= 0 {
		unix.Close(d.dirFD)
		d.dirFD = -1
	}
}

// removeProgressFile closes and removes the FIFO for progress notes.
func (d *Dir) removeProgressFile() {
	if d.fifoFD >= 0 {
		go unix.Close(d.fifoFD) // in the background, because close blocks while a process has the FIFO locked
		d.fifoFD = -1
	}
	os.Remove(d.ProgressPath)
}

// CreateSiblingFile creates a file for the command, next to the directory. It returns the path of the file.
func (d *Dir) CreateSiblingFile(name string, content []byte) (path string, err error) {
	path = d.pathPrefix + "." + name
	os.Remove(path) // remove the file of an earlier command
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return "", &os.PathError{Op: "make", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	_, err = file.Write(content)
	if err == nil {
		err = d.chownToOwner(fd)
	}
	return path, errors.Join(err, file.Close())
}

// ReadFile reads a file that the command left in the directory, with the rights of the command's account. It returns up
// to maxBytes+1 bytes. A result of more than maxBytes bytes means that the file is too large. ReadFile returns
// os.ErrNotExist if the file does not exist.
func (d *Dir) ReadFile(name string, maxBytes int64) ([]byte, error) {
	// Reading the file may hang. The hung read could then use the descriptor after the Dir is closed. So read through a
	// duplicate of the descriptor.
	fd, err := unix.FcntlInt(uintptr(d.dirFD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return runas.LookUpInDirAs(d.owner, fd, func() ([]byte, error) { return readRegularFileAt(fd, name, maxBytes) })
}

// readRegularFileAt reads a regular file, given its name and the descriptor of its directory.
func readRegularFileAt(dirFD int, name string, maxBytes int64) ([]byte, error) {
	const flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOFOLLOW
	fd, err := unix.Openat(dirFD, name, flags, 0)
	switch err {
	case nil:
	case unix.ELOOP, unix.ENXIO:
		return nil, errNotRegularFile
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
		return nil, errNotRegularFile
	}
	return ReadBeyondLimit(f, maxBytes)
}

// MayHaveProgress reports whether any progress notes were read since the last Open.
func (d *Dir) MayHaveProgress() bool { return d.hasReadProgress }

// DrainProgress returns the progress notes that have not been read yet. If a process keeps the FIFO locked
// for longer than fifoDrainTimeout, DrainProgress returns nil and the FIFO is no longer used.
func (d *Dir) DrainProgress() []byte {
	if d == nil || d.fifoFD < 0 {
		return nil
	}
	pipe, got := d.fifoFD, make(chan []byte, 1)
	go func() { got <- drainFIFO(pipe) }()
	select {
	case data := <-got:
		return data
	case <-time.After(fifoDrainTimeout):
		go func() {
			<-got
			unix.Close(pipe)
		}()
		d.fifoFD = -1
		d.nameSuffix++
		os.Remove(d.ProgressPath)
		return nil
	}
}

// fifoDrainTimeout limits how long a read of the FIFO may take.
const fifoDrainTimeout = time.Second

// ProgressFD returns the descriptor of the FIFO, for poll(2). It returns -1 if there is no FIFO.
func (d *Dir) ProgressFD() int { return d.fifoFD }

// ReadProgress returns the progress notes that have not been read yet. It blocks while a process has the
// FIFO locked.
func (d *Dir) ReadProgress() []byte {
	d.hasReadProgress = true
	return drainFIFO(d.fifoFD)
}

// drainFIFO returns the content of a FIFO, or nil if the FIFO is empty.
func drainFIFO(fifoFD int) []byte {
	buf := make([]byte, 64<<10) // this is the capacity of a FIFO
	n, err := unix.Read(fifoFD, buf)
	if err != nil || n <= 0 {
		return nil
	}
	return buf[:n]
}
