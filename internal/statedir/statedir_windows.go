package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
)

// makePrivateDir creates a directory and its missing parents. The directory admits only this user, the
// system and administrators, regardless of the access list of its parent.
func makePrivateDir(dir string) error {
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

// CheckUnwritableByOthers returns an error if other accounts can change an existing state directory. These accounts
// could have put malicious files into the directory.
func CheckUnwritableByOthers(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("cannot check the state folder: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("the state folder %s is not a folder; choose another one with --dir", dir)
	}
	sd, err := accounts.ReadSecurityDescriptor(dir)
	if err == nil {
		err = checkSecurityDescriptor(dir, sd)
	}
	return err
}

// checkSecurityDescriptor returns an error if the security descriptor lets other accounts change the directory, or if
// its owner is not trusted. An owner can always change the access list.
func checkSecurityDescriptor(dir string, sd *windows.SECURITY_DESCRIPTOR) error {
	return accounts.CheckDirAccess(dir, "the state folder "+dir, "choose another one with --dir", sd)
}
