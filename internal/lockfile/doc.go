// Package lockfile implements lock files on Windows. Only one process at a time can open such a file for
// writing, and it holds the lock until it closes the file or ends. Other systems use flock(2), so the package
// is empty there.
package lockfile
