// Package lockfile implements, on Windows, lock files that only one process at a time can open for
// writing. The process holds the lock until it closes the file or ends. Other systems use flock(2),
// and there this package is empty.
package lockfile
