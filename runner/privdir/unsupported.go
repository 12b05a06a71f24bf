//go:build !linux && !windows

package privdir

import (
	"errors"

	"github.com/queuectl/queuectl/runner/runas"
)

// Dir does nothing: commands get no private directory on this system.
type Dir struct{ Path, ProgressPath string }

// RenamedDirNameInfix marks the names of renamed directories. On this system, no directory is renamed.
const RenamedDirNameInfix = ".gone."

// New returns a Dir without a directory.
func New(string) *Dir { return &Dir{} }

// Open returns errors.ErrUnsupported.
func (d *Dir) Open(*runas.Identity) error { return errors.ErrUnsupported }

// WasUsed returns false.
func (d *Dir) WasUsed() bool { return false }

// IsOpen returns false.
func (d *Dir) IsOpen() bool { return false }

// RenameForRemoval does nothing.
func (d *Dir) RenameForRemoval(bool) string { return "" }

// RemoveIfEmpty does nothing.
func (d *Dir) RemoveIfEmpty() {}

// Close does nothing.
func (d *Dir) Close() {}

// CreateSiblingFile returns errors.ErrUnsupported.
func (d *Dir) CreateSiblingFile(string, []byte) (string, error) { return "", errors.ErrUnsupported }

// RemoveSiblingFile does nothing.
func (d *Dir) RemoveSiblingFile(string) {}

// ReadFile returns errors.ErrUnsupported.
func (d *Dir) ReadFile(string, int64) ([]byte, error) { return nil, errors.ErrUnsupported }

// DrainProgress returns nil.
func (d *Dir) DrainProgress() []byte { return nil }

// MayHaveProgress returns false.
func (d *Dir) MayHaveProgress() bool { return false }

// RemoveDirStep returns errors.ErrUnsupported.
func RemoveDirStep(string, *runas.Identity) (hasMore bool, err error) {
	return false, errors.ErrUnsupported
}

// OwnerIdentity returns errors.ErrUnsupported.
func OwnerIdentity(string) (*runas.Identity, error) { return nil, errors.ErrUnsupported }
