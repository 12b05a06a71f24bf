package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
)

// makePrivate creates a directory and its missing parents. The directory admits only this user, the
// system and administrators, regardless of the access list of its parent.
func makePrivate(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	me, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return err
	}
	sd, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" +
		me.User.Sid.String() + ")")
	if err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return err
	}
	attributes := windows.SecurityAttributes{SecurityDescriptor: sd}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	if err := windows.CreateDirectory(name, &attributes); err != nil && !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	return nil
}

// Check returns an error if other accounts could change an existing state directory. Such accounts
// could have put malicious content into it.
func Check(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("cannot check the state folder: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("the state folder %s is not a folder; choose another one with --dir", dir)
	}
	sd, err := accounts.ReadSecurityDescriptor(dir)
	if err == nil {
		err = checkAccess(dir, sd)
	}
	return err
}

// checkAccess returns an error if the access list lets other accounts change the directory. It also
// returns an error if the owner is not trusted, because an owner can change the access list.
func checkAccess(dir string, sd *windows.SECURITY_DESCRIPTOR) error {
	owner, trusted, err := accounts.Owner(sd)
	if err != nil {
		return fmt.Errorf("cannot determine the owner of the state folder %s (%w); choose another one with --dir", dir, err)
	}
	if !trusted {
		return fmt.Errorf(
			`the state folder %s belongs to %s; choose another one with --dir, or run in an elevated prompt: icacls "%[1]s" /setowner *S-1-5-32-544`, dir, accounts.NameOf(owner))
	}
	others, err := accounts.OtherAccountsWithRights(sd, accounts.WriteRights, 0)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf(
			`the state folder %s can be changed by other users (%s); run: icacls "%[1]s" /inheritance:r /grant:r "%%USERNAME%%":(OI)(CI)F *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F`, dir, strings.Join(others, ", "))
	}
	return nil
}
