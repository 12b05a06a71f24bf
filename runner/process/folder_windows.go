package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Folder gives one command after another a private folder, which belongs to this process's
// account, and a file beside it for what the command notes. Its methods are for one goroutine.
type Folder struct {
	Path  string // of the folder, while it is open
	Notes string // of the file

	base string
	made int // folders that had to leave their names
	open bool
	was  notesState
}

// notesState is by what it is seen that the notes have changed.
type notesState struct {
	size int64
	at   time.Time
}

// NewFolder makes none yet; base begins the names of all that there are.
func NewFolder(base string) *Folder { return &Folder{base: base} }

// Open sees to it that there is an empty folder, and nothing in the notes.
func (f *Folder) Open(*Identity) (err error) {
	f.was, f.Notes = notesState{}, f.name(".progress")
	if err := os.Remove(f.Notes); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.made++ // something has it open
		f.Rest()
		f.Notes = f.name(".progress")
	}
	for range sides {
		if f.open {
			return nil
		}
		f.Path = f.name("")
		err = os.Mkdir(f.Path, 0o700)
		f.open = err == nil
		if err != nil && !errors.Is(err, os.ErrExist) {
			break
		}
		if err != nil {
			f.made++
		}
	}
	if err != nil {
		return fmt.Errorf("create the job's private folder: %w", err)
	}
	return nil
}

// Used reports whether there is something in the folder.
func (f *Folder) Used() bool {
	list, err := os.ReadDir(f.Path)
	return err != nil || len(list) > 0
}

// Aside moves the folder to another name in its place, which Remove can be called with, and
// has the next Open make one. What cannot be moved keeps its name.
func (f *Folder) Aside(lived bool) (path string) {
	path = f.Path
	for try := range sides {
		aside := f.name(GoneWord) + strconv.Itoa(try)
		if _, err := os.Lstat(aside); err == nil {
			continue
		}
		if os.Rename(f.Path, aside) == nil {
			path = aside
		}
		break
	}
	if path == f.Path || lived {
		f.made++
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
	if err := os.Remove(f.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.made++
	}
}

// Close removes what is open, but for a folder that is not empty.
func (f *Folder) Close() {
	f.Rest()
	os.Remove(f.Notes) // what has it open keeps it
}

// Pass gives the command a file beside the folder, and says where.
func (f *Folder) Pass(name string, content []byte) (path string, err error) {
	path = f.base + "." + name
	return path, os.WriteFile(path, content, 0o600)
}

// Read reads a file that the command has left in the folder, and one byte more than most of
// a larger one. One that is not there is os.ErrNotExist.
func (f *Folder) Read(name string, most int64) ([]byte, error) {
	path := filepath.Join(f.Path, name)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, ErrNoPlainFile
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readUpTo(file, most)
}

// tail is how much of the notes is read.
const tail = 4 << 10

// Noted reports whether there are notes: a short command's are looked at only when it has ended.
func (f *Folder) Noted() bool {
	_, err := os.Lstat(f.Notes)
	return err == nil
}

// Drain is the end of the notes, if they have changed.
func (f *Folder) Drain() []byte {
	if f == nil {
		return nil
	}
	file, err := os.Open(f.Notes)
	if err != nil {
		return nil // not there, or being written
	}
	defer file.Close()
	info, err := file.Stat()
	now := notesState{}
	if err == nil {
		now = notesState{info.Size(), info.ModTime()}
	}
	if err != nil || now == f.was || !info.Mode().IsRegular() {
		return nil
	}
	f.was = now
	if _, err := file.Seek(max(0, now.size-tail), 0); err != nil {
		return nil
	}
	data, _ := readUpTo(file, tail) // as much as can be read
	return data
}

// notesEvery is the time between two looks at the notes: nothing tells of a change.
const notesEvery = 500 * time.Millisecond

// noteDue is how long it is until a look at the notes is due, below 0 if none is.
func (r *run) noteDue() time.Duration {
	if r.c.Folder == nil {
		return -1
	}
	return max(0, time.Until(r.noteAt))
}

// note takes what the command has noted.
func (r *run) note(now time.Time) {
	if r.c.Folder == nil || now.Before(r.noteAt) {
		return
	}
	if r.noteAt.IsZero() { // it has just begun
		r.noteAt = now.Add(NotesEvery)
		return
	}
	data := r.c.Folder.Drain()
	again := (len(data) > 0 || r.noting) && r.c.Notes.Noted(data)
	r.noting, r.noteAt = again, now.Add(notesEvery)
	if again {
		r.noteAt = now.Add(NotesEvery)
	}
}

// readSecret reads a file.
func (r *run) readSecret(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = Unusable(path + " is not a regular file")
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readUpTo(f, maxSecret)
}

// Remove removes a folder.
func Remove(path string, _ *Identity) (more bool, err error) { return false, os.RemoveAll(path) }

// OwnerOf is nil: all that is run is this process's account's.
func OwnerOf(string) (*Identity, error) { return nil, nil }
