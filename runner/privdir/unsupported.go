//go:build !linux && !windows

package privdir

import (
	"errors"

	"github.com/queuectl/queuectl/runner/runas"
)

// Dir does nothing: commands get no private directory on this system.
type Dir struct{ Path, Notes string }

// AsideInfix is part of the name of a directory that was moved aside.
const AsideInfix = ".gone."

// New returns a Dir without a directory.
func New(string) *Dir { return &Dir{} }

// Open returns errors.ErrUnsupported.
func (f *Dir) Open(*runas.Identity) error { return errors.ErrUnsupported }

// Used returns false.
func (f *Dir) Used() bool { return false }

// IsOpen returns false.
func (f *Dir) IsOpen() bool { return false }

// MoveAside does nothing.
func (f *Dir) MoveAside(bool) string { return "" }

// RemoveUnused does nothing.
func (f *Dir) RemoveUnused() {}

// Close does nothing.
func (f *Dir) Close() {}

// AddFile returns errors.ErrUnsupported.
func (f *Dir) AddFile(string, []byte) (string, error) { return "", errors.ErrUnsupported }

// RemoveFile does nothing.
func (f *Dir) RemoveFile(string) {}

// Read returns errors.ErrUnsupported.
func (f *Dir) Read(string, int64) ([]byte, error) { return nil, errors.ErrUnsupported }

// Drain returns nil.
func (f *Dir) Drain() []byte { return nil }

// HasNotes returns false.
func (f *Dir) HasNotes() bool { return false }

// Remove returns errors.ErrUnsupported.
func Remove(string, *runas.Identity) (more bool, err error) { return false, errors.ErrUnsupported }

// OwnerOf returns errors.ErrUnsupported.
func OwnerOf(string) (*runas.Identity, error) { return nil, errors.ErrUnsupported }
