package install

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
)

// checkProgramTrust returns an error if the service must not run a program: if other accounts could replace
// the program, or if it is in a user's profile, which the service's account cannot read.
func checkProgramTrust(program string) error {
	users, err := windows.KnownFolderPath(windows.FOLDERID_UserProfiles, 0)
	if err != nil {
		return err
	}
	if below, err := filepath.Rel(users, program); err == nil && filepath.IsLocal(below) {
		return queue.Errorf(queue.CodeWrongState, "the service's account cannot read files in %s"+copyProgramsAdvice, users)
	}
	return checkProgramNotReplaceable(program, accounts.ReadSecurityDescriptor)
}

// copyProgramsAdvice is the advice to copy the programs to another directory.
const copyProgramsAdvice = `; copy queuectl.exe and queuectld.exe to another folder, such as ` +
	`C:\Program Files\queuectl, and run there: queuectl service install`

// checkProgramNotReplaceable returns an error if other accounts could replace the program. They could do so if they
// may change the program or its directory, or may move away one of the parent directories. readSecurityDescriptor
// returns the security descriptor of a path, which contains its access list.
func checkProgramNotReplaceable(program string, readSecurityDescriptor func(path string) (*windows.SECURITY_DESCRIPTOR,
	error)) error {
	for path := program; ; path = filepath.Dir(path) {
		rights, without := windows.ACCESS_MASK(accounts.WriteAccessRights), uint8(0)
		if path != program && path != filepath.Dir(program) {
			rights, without = accounts.ReplaceAccessRights, windows.INHERIT_ONLY_ACE
		}
		top := filepath.Dir(path) == path
		if top {
			rights &^= windows.DELETE // a drive cannot be renamed, so the right to delete it is harmless
		}
		sd, err := readSecurityDescriptor(path)
		if err != nil {
			return err
		}
		who, err := accounts.UntrustedAccountsWithRights(sd, rights, without)
		if err != nil {
			return fmt.Errorf("cannot read the access rights of %s: %w", path, err)
		}
		owner, fine, err := accounts.DescriptorOwner(sd)
		if err != nil {
			return fmt.Errorf("cannot read the owner of %s: %w"+copyProgramsAdvice, path, err)
		}
		if !fine {
			who = append(who, accounts.AccountName(owner))
		}
		if len(who) > 0 {
			return queue.Errorf(queue.CodeWrongState, "%s can be changed by other accounts (%s), which could replace the "+
				"program that the service runs"+copyProgramsAdvice, path, strings.Join(who, ", "))
		}
		if top {
			return nil
		}
	}
}
