// Package runas accesses files with the rights of the account that a command runs as. Such an access is
// called a look-up. If the file system does not respond, the package stops waiting for the look-up.
//
// Start with Identity and LookUpAs.
package runas

// Identity is the account that a command runs as, if it is another account than that of this process. Only a
// process of root can start a command with an Identity. The command cannot switch back to root. Files for the
// command are opened with the rights of its Identity.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}
