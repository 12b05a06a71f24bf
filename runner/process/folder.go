//go:build linux || windows

package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"
)

// Limits of what a command's folder is for.
const (
	// NotesEvery is the least time between two looks at what a command notes.
	NotesEvery = 100 * time.Millisecond
	// maxSecret bounds a secret, in bytes.
	maxSecret = 64 << 10
	// minMasked is how long a secret must be to be masked, in bytes: a shorter one is
	// found everywhere.
	minMasked = 4
)

// sides bounds the names that are tried: what cannot be moved aside keeps one.
const sides = 100

// GoneWord is in the names of folders that were moved aside.
const GoneWord = ".gone."

// name is what is named so now.
func (f *Folder) name(ending string) string {
	if f.made == 0 {
		return f.base + ending
	}
	return f.base + "." + strconv.Itoa(f.made) + ending
}

// IsOpen reports whether there is a folder.
func (f *Folder) IsOpen() bool { return f.open }

// Unpass removes a file that was passed.
func (f *Folder) Unpass(name string) { os.Remove(f.base + "." + name) }

// secretError is a command's own fault: a secret that it asks for cannot be read. It does
// not tell what is in it.
type secretError struct {
	name string
	err  error
}

// Error names the variable and why.
func (e *secretError) Error() string { return fmt.Sprintf("env_secret %s: %v", e.name, e.err) }

// Unwrap is why.
func (e *secretError) Unwrap() error { return e.err }

// environ is the command's environment with its secrets, which are masked in its output if
// they are to be.
func (r *run) environ() (env []string, err error) {
	if len(r.c.Secrets) == 0 {
		return r.c.Env, nil
	}
	env = append(make([]string, 0, len(r.c.Env)+len(r.c.Secrets)+1), r.c.Env...)
	var mask [][]byte
	for _, s := range r.c.Secrets {
		value := s.Value
		if s.Path != "" {
			value, err = r.readSecret(s.Path)
		}
		if err == nil {
			value, err = cutSecret(value)
		}
		if err != nil {
			return nil, &secretError{s.Name, err}
		}
		env = append(env, s.Name+"="+string(value))
		if len(value) < minMasked {
			continue
		}
		mask = append(mask, value)
		if r.c.TTY { // which ends lines by two characters
			mask = append(mask, bytes.ReplaceAll(value, []byte("\n"), []byte("\r\n")))
		}
	}
	if r.c.Mask && len(mask) > 0 {
		r.c.Log.Mask(mask)
		if r.c.Notes != nil {
			r.c.Notes.Masks(mask)
		}
	}
	return env, nil
}

// cutSecret takes a secret from what its file has: without the end of the last line.
func cutSecret(raw []byte) ([]byte, error) {
	if len(raw) > maxSecret {
		return nil, Unusable(fmt.Sprintf("the value is larger than %d bytes", maxSecret))
	}
	if bytes.IndexByte(raw, 0) >= 0 {
		return nil, Unusable("the value contains a NUL byte, which an environment variable cannot contain")
	}
	value, found := bytes.CutSuffix(raw, []byte("\n"))
	if found {
		value = bytes.TrimSuffix(value, []byte("\r"))
	}
	return value, nil
}

// ErrNoPlainFile means that a command left something that is not a regular file.
var ErrNoPlainFile = errors.New("not a regular file")

// readUpTo reads a file, and one byte more than it may have if it is larger.
func readUpTo(f *os.File, most int64) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, fmt.Errorf("read the file: %w", err)
	}
	return raw, nil
}
