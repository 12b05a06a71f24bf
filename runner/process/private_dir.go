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

// Bounds for the private directory and the secrets of a command.
const (
	// NotesEvery is the least time between two reads of a command's notes.
	NotesEvery = 100 * time.Millisecond
	// maxSecret is the maximum size of a secret, in bytes.
	maxSecret = 64 << 10
	// minMasked is the minimum size of a secret that is masked, in bytes. A shorter text occurs in
	// ordinary output as well.
	minMasked = 4
)

// maxNames is how many names are tried for a new directory. A name stays in use if its directory could
// not be moved aside.
const maxNames = 100

// AsideInfix is part of the name of a directory that was moved aside.
const AsideInfix = ".gone."

// name returns the current name of the directory, or, with an ending, of the file next to it.
func (f *PrivateDir) name(ending string) string {
	if f.nameSuffix == 0 {
		return f.base + ending
	}
	return f.base + "." + strconv.Itoa(f.nameSuffix) + ending
}

// IsOpen reports whether the directory exists and is open.
func (f *PrivateDir) IsOpen() bool { return f.open }

// RemoveFile removes a file that AddFile created.
func (f *PrivateDir) RemoveFile(name string) { os.Remove(f.base + "." + name) }

// secretError means that a secret that the command asks for cannot be read. The command's user must fix
// that. The error does not contain the secret.
type secretError struct {
	name string
	err  error
}

// Error names the variable and the reason.
func (e *secretError) Error() string { return fmt.Sprintf("env_secret %s: %v", e.name, e.err) }

// Unwrap returns the reason.
func (e *secretError) Unwrap() error { return e.err }

// environ returns the command's environment with its secrets. If c.Mask is set, the secrets are masked
// in the output.
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
		// Mask the form with \r\n as well, because a terminal translates \n to \r\n.
		if r.c.TTY {
			mask = append(mask, bytes.ReplaceAll(value, []byte("\n"), []byte("\r\n")))
		}
	}
	if r.c.Mask && len(mask) > 0 {
		r.c.Log.Mask(mask)
		if r.c.Notes != nil {
			r.c.Notes.SetMasks(mask)
		}
	}
	return env, nil
}

// cutSecret returns the secret in the content of a file: the content without its final newline.
func cutSecret(raw []byte) ([]byte, error) {
	if len(raw) > maxSecret {
		return nil, UnusableError(fmt.Sprintf("the value is larger than %d bytes", maxSecret))
	}
	if bytes.IndexByte(raw, 0) >= 0 {
		return nil, UnusableError("the value contains a NUL byte, which an environment variable cannot contain")
	}
	value, found := bytes.CutSuffix(raw, []byte("\n"))
	if found {
		value = bytes.TrimSuffix(value, []byte("\r"))
	}
	return value, nil
}

// ErrNoPlainFile means that a command left something that is not a regular file.
var ErrNoPlainFile = errors.New("not a regular file")

// readUpTo reads up to maxBytes+1 bytes of a file, so that the caller can recognise a larger file.
func readUpTo(f *os.File, maxBytes int64) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, err
	}
	return raw, nil
}
