// Package runas accesses files with the rights of the account that a command runs as. Such an access is
// called a look-up. If the file system does not answer, the package stops waiting for the look-up.
//
// Start with Identity and LookUp.
package runas

// Identity is the account that a command runs as, if this is not the account of this process. Only root can
// start a command with an Identity. The command cannot switch back to the account of this process. Files
// for the command are opened with the rights of its Identity.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}
