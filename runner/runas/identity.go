// Package runas looks up files with the rights of the account that a command runs as, and gives up a
// look-up that its file system does not answer.
//
// Start with Identity and LookUp.
package runas

// Identity is the account that a command runs as. The command cannot return to the account of this
// process. Only root can set an Identity. Files for the command are opened with the rights of
// this account.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}
