package config

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// These are the values of run_as, the setting that says which account runs the jobs. After fixedRunAsPrefix, the value
// contains the name of a user.
const (
	RunAsService     = "service"
	RunAsSubmitter   = "submitter"
	fixedRunAsPrefix = "fixed:"
)

// A setting that is a list of names may instead be one of these words. "none" means an empty list, and "auto"
// means a list that depends on run_as.
const (
	noneWord = "none"
	autoWord = "auto"
)

// These constants bound each list in the table "access" of the settings file.
const (
	maxNamesPerAccessList = 256
	maxAccountNameBytes   = 256
)

// SettingsTableNames lists the tables of the settings file. For example, the setting access.read is the key "read"
// in the table "access".
var SettingsTableNames = []string{accessTableName, "hooks", "traces", "web"}

// accessTableName is the table whose settings are lists of users and groups.
const accessTableName = "access"

// FixedRunAsValue returns the value of the setting run_as that makes all jobs run as the given user.
func FixedRunAsValue(user string) string { return fixedRunAsPrefix + user }

// FixedJobUser returns the user that runs all jobs. It returns "" if run_as does not name a user.
func (s *Settings) FixedJobUser() string {
	user, _ := strings.CutPrefix(s.RunAs, fixedRunAsPrefix)
	if user == s.RunAs {
		return ""
	}
	return user
}

// SocketPermissions returns the file mode and the group of the control socket. If group is "", the socket keeps
// the group of the service.
func (s *Settings) SocketPermissions() (mode fs.FileMode, group string) {
	return fs.FileMode(panicOnParseError(strconv.ParseUint(s.SocketMode, 8, 32))), s.SocketGroup
}

// AccountsWithRight returns the users and groups that have a right according to the table "access". A group is written
// as @NAME. If the setting is "auto" and run_as is "service", the list is empty. If the setting is "auto" and run_as
// has another value, the members of the group queuectl-admin have the right "admin", and the members of queuectl the
// right "submit".
func (s *Settings) AccountsWithRight(rightName string) []string {
	text := map[string]string{"read": s.AccountsWithRead, "submit": s.AccountsWithSubmit, "operate": s.AccountsWithOperate,
		"admin": s.AccountsWithAdmin}[rightName]
	switch {
	case text == noneWord, text == autoWord && s.RunAs == RunAsService:
		return nil
	case text == autoWord && rightName == "admin":
		return []string{"@queuectl-admin"}
	case text == autoWord:
		return []string{"@queuectl"}
	}
	return strings.Fields(text)
}

func checkRunAs(runAs string) (string, error) {
	user, isFixed := strings.CutPrefix(runAs, fixedRunAsPrefix)
	if isFixed {
		// Allow spaces here: a Windows account may be named NT SERVICE\queuectl, but checkAccountName rejects
		// spaces.
		if err := checkAccountName(strings.ReplaceAll(user, " ", "_")); err != nil {
			return "", fmt.Errorf("%q does not name a valid user; use a user name or uid, like fixed:alice", runAs)
		}
	} else if runAs != RunAsService && runAs != RunAsSubmitter {
		return "", fmt.Errorf("unknown value %q; use service, submitter or fixed:USER", runAs)
	}
	return runAs, nil
}

func checkSocketMode(mode string) (string, error) {
	n, err := strconv.ParseUint(mode, 8, 32)
	if err != nil || len(mode) != 4 || n&0o600 != 0o600 || n > 0o777 {
		return "", fmt.Errorf("%q is not a valid file mode; use four octal digits starting with 06 or 07, in "+
			"quotes, like \"0660\"", mode)
	}
	return mode, nil
}

// parseAccountName returns the given user name, group name or number unchanged. It returns an error if no account can
// have it.
func parseAccountName(name string) (string, error) { return name, checkAccountName(name) }

// accountListSetting returns a setting that is a list of users and groups. The value "auto" is valid only for a
// setting whose default is "auto".
func accountListSetting(name, defaultText string, target *string) Setting {
	return textSetting(name, defaultText, target, func(text string) (string, error) {
		list := strings.Fields(text)
		switch {
		case len(list) == 0:
			return "", fmt.Errorf("the list must not be empty; to allow no users, write \"none\"")
		case len(list) > maxNamesPerAccessList:
			return "", fmt.Errorf("too many users and groups (%d); the maximum is %d", len(list), maxNamesPerAccessList)
		case len(list) == 1 && (text == noneWord || text == autoWord && defaultText == autoWord):
			return text, nil
		}
		for i, n := range list {
			if n == noneWord || n == autoWord {
				return "", fmt.Errorf("%q cannot be combined with names; remove it or the names", n)
			}
			if strings.Contains(n, ",") {
				return "", fmt.Errorf("%q contains a comma; separate names with spaces, like \"alice @staff\"", n)
			}
			if err := checkAccountName(strings.TrimPrefix(n, "@")); err != nil {
				return "", err
			}
			if slices.Contains(list[:i], n) {
				return "", fmt.Errorf("%q is listed twice; list it once", n)
			}
		}
		return strings.Join(list, " "), nil
	})
}

// checkAccountName returns an error if no user or group can have this name or number.
func checkAccountName(name string) error {
	if name == "" || len(name) > maxAccountNameBytes || name[0] == '-' || strings.ContainsAny(name,
		" \t\r\n\v\f\x00:,@*\"") {
		return fmt.Errorf("%q is not a valid user or group name; a name must not start with -, and must not contain a "+
			"space or any of : , @ * \"", name)
	}
	if name[0] >= '0' && name[0] <= '9' && strings.Trim(name, "0123456789") == "" {
		if n, err := strconv.ParseUint(name, 10, 64); err != nil || n > maxAccountID {
			return fmt.Errorf("%q is not a valid uid or gid; the maximum is %d", name, uint64(maxAccountID))
		}
	}
	return nil
}
