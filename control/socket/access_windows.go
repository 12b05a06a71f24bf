package socket

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
)

// LogHint says where the user finds the log of the system service.
const LogHint = `%ProgramData%\queuectl\service.log, or Event Viewer, Windows Logs, Application`

// AccessError returns the error for a user without permission to connect to a pipe. It explains how to get
// access. It cannot list the users who have access, because this user may not read the permissions of the pipe.
func AccessError(path string) error {
	var accountNames accounts.Directory
	you := accountNames.UserName(accounts.CurrentUser())
	_, group := accountNames.GroupID(ServiceAccount)
	return queue.Errorf(queue.CodeDenied, "%s", noAccessText(path, you, group))
}

// noAccessText returns the text of AccessError. groupExists says whether the group exists whose members may use
// the pipe of the system service.
func noAccessText(path, userName string, groupExists bool) string {
	text := fmt.Sprintf("%s cannot use the pipe %s", userName, path)
	name, _ := cutPipePrefix(path)
	switch {
	case !strings.EqualFold(name, ServiceAccount): // the pipe is that of a user's own service
		return text + ": only its owner and administrators (in an elevated prompt) may use it; to admit other users, " +
			"change [access] in the settings file of the service"
	case !groupExists:
		return text + ": ask an administrator to admit you in [access] of the settings file of the service, or " +
			"use an elevated prompt"
	}
	return text + fmt.Sprintf(": only members of the group %s may use it; ask an administrator to admit you in [access] "+
		"of the settings file of the service, or to add you to the group; then log off and on again; the group command is: "+
		"net localgroup %[1]s \"%s\" /add", ServiceAccount, userName)
}
