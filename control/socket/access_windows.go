package socket

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
)

// ServiceLogHint says where the user finds the log of the system service.
const ServiceLogHint = `%ProgramData%\queuectl\service.log, or Event Viewer, Windows Logs, Application`

// AccessDeniedError returns the error for a user without permission to connect to a pipe. It explains how to get
// access. It cannot list the users who have access, because a user without access may not read the permissions of the
// pipe.
func AccessDeniedError(path string) error {
	var accountNames accounts.Resolver
	you := accountNames.UserName(accounts.CurrentUserID())
	_, group := accountNames.GroupID(ServiceAccountName)
	return queue.Errorf(queue.CodeDenied, "%s", accessDeniedText(path, you, group))
}

// accessDeniedText returns the text of AccessDeniedError. groupExists says whether the machine has the group whose
// members may use the pipe of the system service.
func accessDeniedText(path, userName string, groupExists bool) string {
	text := fmt.Sprintf("%s cannot use the pipe %s", userName, path)
	name, _ := cutPipePrefix(path)
	switch {
	case !strings.EqualFold(name, ServiceAccountName): // the pipe is that of a user's own service
		return text + ": only its owner and administrators (in an elevated prompt) may use it; to admit other users, " +
			"change [access] in the settings file of the service"
	case !groupExists:
		return text + ": ask an administrator to admit you in [access] of the settings file of the service, or " +
			"use an elevated prompt"
	}
	return text + fmt.Sprintf(": only members of the group %s may use it; ask an administrator to admit you in [access] "+
		"of the settings file of the service, or to add you to the group; then log off and on again; the group command is: "+
		"net localgroup %[1]s \"%s\" /add", ServiceAccountName, userName)
}
