//go:build unix

package service

import (
	"os"

	"github.com/queuectl/queuectl/store"
)

// examineFolder looks at who may use the state folder beside the service: a service does
// not start in one that others could change.
func examineFolder(string) []store.Finding { return nil }

// mkdirPrivate makes a folder, and those above it, that nobody else enters.
func mkdirPrivate(dir string) error { return os.MkdirAll(dir, 0o700) }
