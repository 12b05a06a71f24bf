package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/packaging"
	"github.com/queuectl/queuectl/queue"
)

// stateDirSecurityDescriptor returns the security descriptor of the service's directory and of everything in it. Only
// the system, the administrators and the service's account have access. The administrators are the owner. No
// rights are inherited from the parent directory.
func stateDirSecurityDescriptor() string {
	return "O:BAG:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" + accounts.ServiceSID(ServiceName) + ")"
}

// secureStateDir creates the service's directory, or restricts the access to an existing one. If settingsFile does not
// exist, secureStateDir creates it with the default settings.
func secureStateDir(dir, settingsFile string) error {
	if err := createOrRestrictDir(dir); err != nil {
		return fmt.Errorf("cannot set up the state folder %s: %w", dir, err)
	}
	text, err := packaging.InstalledFiles.ReadFile("windows/queuectl.toml")
	if err != nil {
		panic("install: " + err.Error())
	}
	f, err := os.OpenFile(settingsFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // the file exists; keep it, because a user may have changed it
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// createOrRestrictDir creates a directory to which only the accounts in stateDirSecurityDescriptor have access. If the
// directory exists, createOrRestrictDir restricts the access to it.
func createOrRestrictDir(dir string) error {
	sd, err := windows.SecurityDescriptorFromString(stateDirSecurityDescriptor())
	name, nameErr := windows.UTF16PtrFromString(dir)
	if err := errors.Join(err, nameErr); err != nil {
		return err
	}
	attributes := windows.SecurityAttributes{SecurityDescriptor: sd}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	err = windows.CreateDirectory(name, &attributes)
	if err == nil {
		return nil
	}
	if !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return err
	}
	return restrictDir(dir, name, sd)
}

// restrictDir restricts the access to an existing directory. Every user may create directories in the parent, so
// another user may have created this one. restrictDir returns an error if another user owns the directory or a file in
// it, because an owner can always get access.
func restrictDir(dir string, dirUTF16 *uint16, sd *windows.SECURITY_DESCRIPTOR) error {
	h, err := windows.CreateFile(
		dirUTF16,
		windows.READ_CONTROL|windows.WRITE_DAC|windows.WRITE_OWNER|windows.FILE_READ_ATTRIBUTES|windows.FILE_LIST_DIRECTORY,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_BACKUP_SEMANTICS|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	var fileInfo windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &fileInfo); err != nil {
		return err
	}
	if fileInfo.FileAttributes&windows.FILE_ATTRIBUTE_DIRECTORY == 0 ||
		fileInfo.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		return queue.Errorf(queue.CodeWrongState, "it is not a folder, or is a link to another folder; move it away")
	}
	have, err := windows.GetSecurityInfo(h, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return err
	}
	if err := checkTrustedOwner("it", have); err != nil {
		return err
	}
	owner, _, ownerErr := sd.Owner()
	dacl, _, daclErr := sd.DACL()
	if err := errors.Join(ownerErr, daclErr); err != nil {
		return err
	}
	const securityInfo = windows.OWNER_SECURITY_INFORMATION | windows.DACL_SECURITY_INFORMATION | windows.PROTECTED_DACL_SECURITY_INFORMATION
	if err := windows.SetSecurityInfo(h, windows.SE_FILE_OBJECT, securityInfo, owner, nil, dacl, nil); err != nil {
		return err
	}
	list, err := os.ReadDir(dir) // access is restricted now, so no other user can add files after this list was read
	if err != nil {
		return err
	}
	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		have, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
		if err == nil {
			err = checkTrustedOwner(e.Name()+" in it", have)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkTrustedOwner returns an error unless the owner in sd is the system, the administrators, this process's user or
// the service's account. displayName is the name of the file or directory in the error.
func checkTrustedOwner(displayName string, sd *windows.SECURITY_DESCRIPTOR) error {
	owner, _, ownerErr := sd.Owner()
	me, meErr := windows.GetCurrentProcessToken().GetTokenUser()
	if err := errors.Join(ownerErr, meErr); err != nil {
		return err
	}
	if owner.Equals(me.User.Sid) || owner.IsWellKnown(windows.WinLocalSystemSid) ||
		owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) || owner.String() == accounts.ServiceSID(ServiceName) {
		return nil
	}
	return queue.Errorf(queue.CodeWrongState, "%s belongs to %s, who could change what the service does; move it away",
		displayName, accounts.AccountName(owner))
}
